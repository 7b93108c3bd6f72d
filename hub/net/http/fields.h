// Reading the values of header fields. Pure. Source: RFC 9110 section 5.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moex::net {

// Names in lower case, in the order in which they came.
using HeaderFields = std::vector<std::pair<std::string, std::string>>;

std::string lower_case(std::string_view text);  // ASCII letters alone
// `text` without the spaces and tabs around it.
std::string_view trim_blanks(std::string_view text);

// Whether a comma-separated field, in any of its lines, lists `token`.
// The comparison is of whole words and blind to case: "closely" is not "close".
bool lists_token(const HeaderFields& headers, std::string_view name, std::string_view token);

// A field whose value is one thing, not a list. Two of them in one request are read
// differently by two readers, so they have no meaning. Source: RFC 9110 section 5.3.
bool is_singleton_field(std::string_view name);

}  // namespace moex::net
