// Parsing of JSON inside frames, without exceptions. The parser bounds size and depth; the readers
// check types and ranges. A reader leaves its result `out` unchanged when the field is absent and
// not required.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

using Json = nlohmann::json;

inline constexpr std::size_t json_depth_max = 8;

// Parses a JSON object of at most `bytes_max` bytes. Errors name the object by `what`.
Result<Json> parse_json_object(std::string_view json, std::size_t bytes_max, const char* what);
// Writes sorted or ordered JSON in one line. Invalid UTF-8 in strings becomes U+FFFD.
template <class AnyJson>
std::string dump_json(const AnyJson& json) {
    return json.dump(-1, ' ', false, AnyJson::error_handler_t::replace);
}

enum class Presence { optional, required };

// Returns the member of `object` with this name. Returns nullptr when the member is absent, or when
// `object` is not an object.
template <class AnyJson>
const AnyJson* find_member(const AnyJson& object, std::string_view name) {
    if (!object.is_object()) return nullptr;
    const auto found = object.find(name);
    return found == object.end() ? nullptr : &*found;
}
Status read_text(std::string& out, const Json& object, const char* name, std::size_t bytes_max,
                 Presence presence = Presence::optional);
Status read_flag(bool& out, const Json& object, const char* name,
                 Presence presence = Presence::optional);
Status read_integer(std::uint64_t& out, const Json& object, const char* name,
                    std::uint64_t value_min, std::uint64_t value_max,
                    Presence presence = Presence::optional);
template <class Integer>
Status read_integer_as(Integer& out, const Json& object, const char* name, std::uint64_t value_min,
                       std::uint64_t value_max, Presence presence = Presence::optional) {
    std::uint64_t value = out;
    MOEX_TRY(read_integer(value, object, name, value_min, value_max, presence));
    out = static_cast<Integer>(value);
    return {};
}

// Returns the longest prefix of `text` with at most `bytes_max` bytes that does not end inside a
// UTF-8 sequence.
std::string_view clip_utf8(std::string_view text, std::size_t bytes_max);

}  // namespace moex
