// The value of `serve --prefetch shadow:DIR`, and the constants of a served shadow.
//
// A shadow was once described by a string such as shadow:DIR:3,token=4,kv=16,fetch=8,ahead=0. Its
// knobs changed throughput by less than the noise of a tenth, so the best measured row is fixed
// (bench/results/on_demand_shadow.*, row "shadow:int3+kv=16": 1.08 and 1.11 of no hints): the token
// is aligned at every step, keys and values at every 16th, the shadow names as many experts as the
// model asks for, and it draws the next token itself. The old spellings are refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

// Period, in tokens, at which the token that the model drew is copied into the shadow.
inline constexpr std::uint32_t shadow_token_period = 1;
// Period, in tokens, at which the model's keys and values are copied into the shadow.
inline constexpr std::uint32_t shadow_kv_period = 16;
// The shadow draws the next token itself and continues with it before the model has drawn its own
// token.
inline constexpr bool shadow_draws_ahead = true;

// Returns true if `prefetch`, the value of --prefetch, begins with "shadow:".
bool names_shadow(std::string_view prefetch);
// Returns DIR of "shadow:DIR". Returns invalid_argument if DIR is missing, or for the old spellings
// shadow:DIR:N, shadow:served:N and shadow:DIR,KEY=NUMBER. The name of the folder therefore has no
// comma, and does not end in a colon and a number.
Result<std::string> parse_shadow_folder(std::string_view prefetch);

}  // namespace moex
