// One token drawn from logits: temperature, top-k, min-p, top-p, then the draw itself.
// All arithmetic behind the first scaling is in whole numbers, and a sum of whole numbers does not
// depend on its order: the same logits and the same random word give the same token on every
// machine, whichever thread draws. What each cut keeps is the beginning of one order, by
// descending logit and ascending id; so a histogram over that order finds the cut without a sort.
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
    double min_p = 0.0;        // of the likeliest token's probability
};

// How far a token lies below the likeliest: in steps of 2^-20 octaves of probability. Beyond
// draw_steps_max, a probability 2^-39 of the likeliest's, it is never drawn.
inline constexpr std::uint32_t draw_steps_per_octave = 1u << 20;
inline constexpr std::uint32_t draw_steps_max = 39 * draw_steps_per_octave;

// The probability relative to the likeliest token's, in units of 2^-39: 2^(39 - steps / 2^20),
// rounded down; off by less than 1e-8 of itself and one unit.
std::uint64_t draw_weight(std::uint32_t steps);

// The likeliest token; of equal ones the lowest id. 0 where the logits are no numbers.
TokenId likeliest_token(std::span<const float> logits);

// `random`: 64 uniform bits. O(vocabulary), no sort but of the few tokens around a cut.
// The likeliest token where the logits are no numbers.
TokenId draw_token(std::span<const float> logits, const DrawOptions& options, std::uint64_t random);

// Its twin, slow and obvious: sorts the whole vocabulary and walks along it.
TokenId draw_token_plain(std::span<const float> logits, const DrawOptions& options,
                         std::uint64_t random);

}  // namespace moex
