// Draws one token from logits: temperature, top-k, min-p, top-p, then the draw itself.
// After the first scaling all arithmetic is in whole numbers, and a sum of whole numbers does not
// depend on its order. So the same logits and the same random word give the same token on every
// machine, whichever thread draws. The tokens that a cut keeps are the beginning of a fixed order,
// by descending logit and ascending id. A histogram over that order therefore finds the cut without
// a sort.
// Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020 (top-p).
#pragma once

#include <cstdint>
#include <span>

#include "hub/model/tokenizer/token_id.h"

namespace moex {

struct DrawOptions {
    double temperature = 1.0;  // above 0
    double top_p = 1.0;        // the fewest tokens that reach this share together; at least one
    std::uint32_t top_k = 0;   // 0: off
    double min_p = 0.0;        // relative to the likeliest token's probability
};

// Distance between a token and the likeliest token, in steps of 2^-20 octaves of probability. A
// token beyond draw_steps_max, whose probability is below 2^-39 of the likeliest's, is never drawn.
inline constexpr std::uint32_t draw_steps_per_octave = 1u << 20;
inline constexpr std::uint32_t draw_steps_max = 39 * draw_steps_per_octave;

// Returns the probability relative to the likeliest token's, in units of 2^-39: 2^(39 - steps /
// 2^20), rounded down. The relative error is below 1e-8, plus one unit.
std::uint64_t draw_weight(std::uint32_t steps);

// Returns the likeliest token; of equal ones the lowest id. Returns 0 where the logits are not
// numbers.
TokenId likeliest_token(std::span<const float> logits);

// Draws a token. `random` is 64 uniform bits. O(vocabulary); only the few tokens around a cut are
// sorted. Returns the likeliest token where the logits are not numbers.
TokenId draw_token(std::span<const float> logits, const DrawOptions& options, std::uint64_t random);

// The slow and obvious twin of draw_token(): it sorts the whole vocabulary and walks along it.
TokenId draw_token_plain(std::span<const float> logits, const DrawOptions& options,
                         std::uint64_t random);

}  // namespace moex
