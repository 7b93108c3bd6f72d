// The JSON of a request's body: parsed within bounds, and tolerant of half a surrogate pair.
#pragma once

#include <string>
#include <string_view>

#include "hub/api/refusal.h"
#include "hub/model/json_fields.h"

namespace moex {

// Parses JSON within bounds on size and depth, as valid UTF-8. Any failure becomes a refusal with a
// 4xx status within milliseconds.
Checked<OrderedJson> parse_api_body(std::string_view body, std::uint32_t bytes_max);

// Returns the JSON text with \ufffd in place of each escaped surrogate that has no partner.
// Programs in JavaScript cut an emoji in two, and send the half in every later turn of the chat.
std::string with_whole_surrogates(std::string_view json_text);

}  // namespace moex
