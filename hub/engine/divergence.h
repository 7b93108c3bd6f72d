// Compares a model with a reference on a text: how far its distribution of the next token is from
// the reference's, and how often the likeliest token is the same. The text is cut into windows that
// do not overlap, and each window is a new sequence.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "hub/engine/perplexity.h"

namespace moex {

// A model that reads the text. Both members are borrowed.
struct ReadingModel {
    Decoder& decoder;
    ExpertBackend& experts;
    KvDtype kv_dtype = KvDtype::f32;
};
struct Divergence {
    double reference_perplexity = 0, perplexity = 0;
    // mean Kullback-Leibler divergence of the model from the reference, in nats a token
    double mean_kl = 0;
    double same_likeliest = 0;  // share of positions at which both have the same likeliest token
    std::uint64_t num_predictions = 0;
};

// Measures the divergence of each model of `models` from the reference, which reads the text once.
// All models must have the same vocabulary. `options` are those of measure_perplexity(), except
// that each model has its own kv_dtype. `progress(done, windows)` may be empty. The reference's
// logits of one window are in memory.
Result<std::vector<Divergence>> measure_divergence(
    const ReadingModel& reference, std::span<const ReadingModel> models,
    std::span<const TokenId> tokens, const PerplexityOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t)>& progress);

}  // namespace moex
