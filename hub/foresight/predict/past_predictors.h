// Predictors that look at no hidden state: chance, and what was asked before. They are what caches
// keep by, and what every other predictor has to beat. Each knows a layer by its own past only.
#pragma once

#include <memory>
#include <vector>

#include "hub/engine/expert_predictor.h"
#include "hub/foresight/predict/expert_profile.h"

namespace moex {

// The same numbers for the same seed.
std::unique_ptr<ExpertPredictor> make_random_predictor(std::uint64_t seed);
// The experts of the sequence's token before, by their weights; behind them those of earlier ones.
std::unique_ptr<ExpertPredictor> make_previous_token_predictor(const ModelConfig& config);
// Used last, by anybody; of one token the larger weight counts as later.
std::unique_ptr<ExpertPredictor> make_lru_predictor(const ModelConfig& config);
// Used most often since the start, by anybody.
std::unique_ptr<ExpertPredictor> make_lfu_predictor(const ModelConfig& config);
// Used most often in a calibration text.
std::unique_ptr<ExpertPredictor> make_popularity_predictor(
    std::shared_ptr<const ExpertProfile> profile);
// Used most often by this sequence; equals by the profile, where there is one.
std::unique_ptr<ExpertPredictor> make_request_popularity_predictor(
    const ModelConfig& config, std::shared_ptr<const ExpertProfile> profile);

}  // namespace moex
