// A predictor for benches: texts that were decoded before are decoded again, and this one knows
// their routes. Random weights predict nothing, so what hints of a stated quality are worth is
// measured with guesses that are right by design.
#pragma once

#include <cstdint>
#include <memory>

#include "hub/engine/expert_predictor.h"

namespace moex {

// Of the experts that a token chose when it last came behind the same tokens, each is guessed with
// probability `recall`; another of the layer's stands in where it is not. The same guesses for the
// same seed, whatever was asked between. Knows nothing of a token that never came behind them.
// With `is_token_ahead` also of the token that last followed, as a shadow that is a token ahead
// (served_shadow.h). Keeps all that it saw.
std::unique_ptr<ExpertPredictor> make_replay_predictor(double recall, std::uint64_t seed,
                                                       bool is_token_ahead = false);

}  // namespace moex
