// JSON from files that strangers wrote: bounded nesting and size, no name twice in one object.
// Reading costs O(n log n) in the text.
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
    std::uint64_t values_max = 2'000'000;  // names of members do not count
    // Of one object. An ordered_json is searched from its front at each lookup: keep it low there.
    std::uint32_t keys_max = 2'000'000;
};

// `what` names the text in errors, e.g. "models/x/config.json". Json is nlohmann::json, sorted by
// name, or nlohmann::ordered_json.
template <class Json = nlohmann::json>
Result<Json> parse_strict_json(std::string_view json_text, std::string_view what,
                               const JsonLimits& limits = {});
extern template Result<nlohmann::json> parse_strict_json(std::string_view, std::string_view,
                                                         const JsonLimits&);
extern template Result<nlohmann::ordered_json> parse_strict_json(std::string_view, std::string_view,
                                                                 const JsonLimits&);

// A JSON value as an error message may show it: at most 60 characters.
std::string json_excerpt(const nlohmann::json& value);
std::string json_excerpt(const nlohmann::ordered_json& value);
inline std::string json_excerpt(const std::string& text) {
    return json_excerpt(nlohmann::json(text));
}

// How a file's fields are refused (JsonFields of hub/model/json_fields.h): `what` names the file.
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
