// Reading the values of header fields. Pure. Source: RFC 9110 section 5.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moex::net {

// Header fields in the order of the request; the names are in lower case.
using HeaderFields = std::vector<std::pair<std::string, std::string>>;

std::string lower_case(std::string_view text);  // ASCII letters alone
// Returns `text` without leading and trailing spaces and tabs.
std::string_view trim_blanks(std::string_view text);

// Returns true if a comma-separated field, in any of its lines, lists `token`. Whole list items are
// compared without regard to case: "closely" is not "close".
bool lists_token(const HeaderFields& headers, std::string_view name, std::string_view token);

// Returns true if the value of a field is a single value and not a list. Two servers may interpret
// a repeated field of this kind differently, so such a request is refused. Source: RFC 9110 section
// 5.3.
bool is_singleton_field(std::string_view name);

}  // namespace moex::net
