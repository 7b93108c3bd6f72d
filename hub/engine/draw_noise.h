// Noise of a random draw: 64 uniform bits for each token of the vocabulary, as a function of seed,
// choice and position.
//
// The problem: a generator that is advanced at every draw makes a token depend on the number of
// draws before it. A sequence that verifies drafted tokens, is preempted or resumed draws more or
// fewer times, and its text would change.
//
// So the noise is a function without state. The token that is drawn at a position depends on seed,
// choice, position and logits, and on nothing else. Each token of the vocabulary has noise of its
// own, so that a race (hub/engine/draw.h) compares tokens instead of walking along their
// probabilities. The function uses whole numbers only and gives the same bits on every machine. It
// may be called from any thread.
// Source of the mixing: Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
// 2014 (64 bits); Wellons, "Prospecting for hash functions", 2018 (32 bits, lowbias32).
#pragma once

#include <cstdint>

#include "hub/model/tokenizer/token_id.h"

namespace moex {

// Identifies one random draw of one answer. `choice` counts the answers to one request. `position`
// is the index of the drawn token in the sequence, the prompt included: an answer that another
// request with the same seed continues uses the same noise as an uninterrupted answer.
struct DrawPlace {
    std::uint64_t seed = 0;
    std::uint32_t choice = 0;
    std::uint32_t position = 0;
};

class DrawNoise {
  public:
    explicit DrawNoise(const DrawPlace& place);
    // Return the upper and the lower 32 bits of the noise of token `id`. They use two rounds of
    // mixing with one key each, in 32-bit arithmetic, so that the compiler can vectorise a loop
    // over ids.
    std::uint32_t high(TokenId id) const { return mix(mix(id ^ key_[0]) + key_[1]); }
    std::uint32_t low(TokenId id) const { return mix(mix(id ^ key_[2]) + key_[3]); }
    std::uint64_t of(TokenId id) const { return std::uint64_t{high(id)} << 32 | low(id); }

  private:
    static std::uint32_t mix(std::uint32_t x) {
        x = (x ^ (x >> 16)) * 0x7feb'352du;
        x = (x ^ (x >> 15)) * 0x846c'a68bu;
        return x ^ (x >> 16);
    }
    std::uint32_t key_[4];
};

// Returns the time at which an exponential clock of rate 1 rings, from uniform noise: -log2(1 -
// noise / 2^64), in units of 2^-57, rounded up by less than two units; at least 1. A call takes
// about 0.1 us.
std::uint64_t exponential_time(std::uint64_t noise);

}  // namespace moex
