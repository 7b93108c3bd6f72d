// Parsing of JSON from untrusted files. Nesting and size are bounded, and a name may occur only
// once in an object. Parsing costs O(n log n) in the length of the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "protocol/result.h"
#include "protocol/text.h"

namespace moex {

struct JsonLimits {
    std::uint32_t depth_max = 32;
    std::uint64_t values_max = 2'000'000;  // limit for all values; names of members do not count
    // limit for members per object; keep it low for ordered_json, where each lookup is a linear
    // search
    std::uint32_t keys_max = 2'000'000;
};

// Parses `json_text`. Errors name the text by `what`, e.g. "models/x/config.json". The type Json is
// nlohmann::json, which is sorted by name, or nlohmann::ordered_json.
template <class Json = nlohmann::json>
Result<Json> parse_strict_json(std::string_view json_text, std::string_view what,
                               const JsonLimits& limits = {});
extern template Result<nlohmann::json> parse_strict_json(std::string_view, std::string_view,
                                                         const JsonLimits&);
extern template Result<nlohmann::ordered_json> parse_strict_json(std::string_view, std::string_view,
                                                                 const JsonLimits&);

// Returns a JSON value as text for error messages, with at most 60 characters.
std::string json_excerpt(const nlohmann::json& value);
std::string json_excerpt(const nlohmann::ordered_json& value);
inline std::string json_excerpt(const std::string& text) {
    return json_excerpt(nlohmann::json(text));
}

// The Wording of JsonFields (hub/model/json_fields.h) for fields of a file. Errors name the file by
// `what`.
struct FileWording {
    using Problem = Error;
    std::string what;

    Error wrong(std::string_view name, std::string_view wanted, const nlohmann::json* found) const {
        return {ErrorCode::bad_field,
                text(what, ": ", name, " is ", found == nullptr ? "missing" : json_excerpt(*found),
                     ", wanted ", wanted)};
    }
};

}  // namespace moex
