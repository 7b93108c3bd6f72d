// A predictor for benches: a text that was decoded before is decoded again, greedily, and this one
// knows its routes. Random weights predict nothing, so what hints of a stated quality are worth is
// measured with guesses that are right by design.
#pragma once

#include <cstdint>
#include <memory>

#include "hub/engine/expert_predictor.h"

namespace moex {

// Of the experts that a token chose at its position when it was last there, each is guessed with
// probability `recall`; another of the layer's stands in where it is not. The same guesses for the
// same seed, whatever was asked between. Knows nothing of a token that was never at its position.
std::unique_ptr<ExpertPredictor> make_replay_predictor(double recall, std::uint64_t seed);

}  // namespace moex
