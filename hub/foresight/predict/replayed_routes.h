// A predictor for benches (`serve --prefetch-replay`). A bench decodes the same texts twice; this
// predictor records the routes of the first time and predicts them the second time, with a chosen
// recall. The benches' models have random weights, and no predictor can learn their routes.
// Replaying gives such a model hints of a chosen quality, so that their value can be measured.
#pragma once

#include <cstdint>
#include <memory>

#include "hub/engine/expert_predictor.h"

namespace moex {

// Predicts the experts that a token chose when it last followed the same tokens. Each of these
// experts is kept with probability `recall`, and replaced by another expert of the layer otherwise.
// Equal seeds give equal guesses, whatever other predictions were made before. predict() returns
// false for a token that has not followed the same tokens before. With `is_token_ahead` the
// predictor also knows the next token, the one that followed last, as a shadow that is one token
// ahead does (served_shadow.h). Memory grows with each observed token.
std::unique_ptr<ExpertPredictor> make_replay_predictor(double recall, std::uint64_t seed,
                                                       bool is_token_ahead = false);

}  // namespace moex
