// JSON from files that strangers wrote: bounded nesting and size, no name twice in one object.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "protocol/result.h"

namespace moex {

struct JsonLimits {
    std::uint32_t depth_max = 32;
    std::uint64_t values_max = 4'000'000;  // counted by commas and colons, before anything is allocated
    std::uint32_t keys_max = 100'000;      // of one object: the library looks through all earlier keys at each new one
};

// `what` names the text in errors, e.g. "models/x/config.json".
Result<nlohmann::ordered_json> parse_strict_json(std::string_view json_text, std::string_view what, const JsonLimits& limits = {});

// A JSON value as an error message may show it: at most 60 characters.
std::string json_excerpt(const nlohmann::ordered_json& value);

}  // namespace moex
