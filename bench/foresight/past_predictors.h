// Predictors that read no hidden state: random choice, and the requests of the past. Caches evict
// by the same rules, and every other predictor should be better than these. Each of them predicts a
// layer from the past of that layer alone.
#pragma once

#include <memory>
#include <vector>

#include "hub/engine/expert_predictor.h"
#include "hub/foresight/predict/expert_profile.h"

namespace moex::bench {

// Predicts experts at random; equal seeds give equal predictions.
std::unique_ptr<ExpertPredictor> make_random_predictor(std::uint64_t seed);
// Predicts the experts of the sequence's previous token by weight, then those of earlier tokens.
std::unique_ptr<ExpertPredictor> make_previous_token_predictor(const ModelConfig& config);
// Predicts the most recently used experts of all sequences; within a token the larger weight counts
// as more recent.
std::unique_ptr<ExpertPredictor> make_lru_predictor(const ModelConfig& config);
// Predicts the most frequently used experts of all sequences since the start.
std::unique_ptr<ExpertPredictor> make_lfu_predictor(const ModelConfig& config);
// Predicts the experts that were used most often in a calibration text.
std::unique_ptr<ExpertPredictor> make_popularity_predictor(
    std::shared_ptr<const ExpertProfile> profile);
// Predicts the experts that this sequence used most often; experts with equal counts are ordered by
// the profile, if there is one.
std::unique_ptr<ExpertPredictor> make_request_popularity_predictor(
    const ModelConfig& config, std::shared_ptr<const ExpertProfile> profile);

}  // namespace moex::bench
