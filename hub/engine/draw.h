// Draws one token from logits: temperature, top-k, min-p, top-p, then a race.
//
// In the race each token that survives the cuts has a clock that rings after an exponential time,
// divided by the token's weight; the first clock wins. Token t wins with probability weight(t) over
// the sum of weights, as in any draw. The race is chosen for drafts: two distributions that differ
// by a total variation TV, drawn with the same noise, give the same token with probability at least
// (1 - TV) / (1 + TV). A walk along the probabilities, whose tokens all shift when one weight
// changes, gives the same token less often (0.785 instead of 0.895 at TV 0.09 and top-p 0.95).
//
// After the first scaling all arithmetic is in whole numbers, and neither sums nor a minimum depend
// on an order. So the same logits and the same noise give the same token on every machine,
// whichever thread draws. The tokens that a cut keeps are the beginning of a fixed order, by
// descending logit and ascending id. A histogram over that order therefore finds the cut without a
// sort.
// Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020 (top-p); Gumbel's
// trick as in Maddison, Tarlow and Minka, "A* Sampling", 2014 (the race).
#pragma once

#include <cstdint>
#include <span>

#include "hub/engine/draw_noise.h"
#include "hub/model/tokenizer/token_id.h"

namespace moex {

struct DrawOptions {
    double temperature = 1.0;  // above 0
    // keep the fewest tokens with at least this total probability; at least one token
    double top_p = 1.0;
    std::uint32_t top_k = 0;  // 0: off
    double min_p = 0.0;  // least probability of a kept token, relative to the likeliest token's
};

// Distance between a token and the likeliest token, in steps of 2^-20 octaves of probability. A
// token beyond draw_steps_max, whose probability is below 2^-39 of the likeliest's, is never drawn.
inline constexpr std::uint32_t draw_steps_per_octave = 1u << 20;
inline constexpr std::uint32_t draw_steps_max = 39 * draw_steps_per_octave;

// Returns the probability of a token `steps` below the likeliest one, relative to the likeliest
// one's, in units of 2^-39: 2^(39 - steps / 2^20), rounded down. The relative error is below 1e-8,
// plus one unit.
std::uint64_t draw_weight(std::uint32_t steps);

// Returns the id of the likeliest token; of several equally likely ones the lowest id. Returns 0 if
// the logits are NaN.
TokenId likeliest_token(std::span<const float> logits);

// Draws a token. O(vocabulary); only the few tokens around a cut are sorted. Returns
// likeliest_token() if the logits are NaN.
// `ids`: the token ids of `logits`, ascending, if `logits` covers only a part of the vocabulary; if
// `ids` is empty, the index in `logits` is the id. The result is an index into `logits`.
TokenId draw_token(std::span<const float> logits, const DrawOptions& options,
                   const DrawPlace& place, std::span<const TokenId> ids = {});

// The slow and simple reference for draw_token(): it sorts the whole vocabulary and runs the race
// of all kept tokens.
TokenId draw_token_plain(std::span<const float> logits, const DrawOptions& options,
                         const DrawPlace& place);

}  // namespace moex
