// Measures how well a model predicts a text: exp of the mean negative log-likelihood of its tokens.
// The text is cut into windows that do not overlap, and each window is a new sequence.
#pragma once

#include <functional>
#include <span>

#include "hub/engine/decoder.h"

namespace moex {

struct PerplexityOptions {
    // tokens per window; a window of n tokens gives n − 1 predictions
    std::uint32_t window_tokens = 512;
    // number of windows to measure; 0: all whole windows of the text
    std::uint32_t num_windows = 0;
    KvDtype kv_dtype = KvDtype::f32;
    // speculator of a lossy mode, for all rows; null: exact
    ExpertSpeculator* speculator = nullptr;
};
struct Perplexity {
    double perplexity = 0;
    double mean_nll = 0;  // nats per token
    std::uint64_t num_predictions = 0;
    std::uint32_t num_windows = 0;
};
// Measures the perplexity of the text `tokens`. The callback `progress(windows_done, windows,
// perplexity_so_far)` may be empty. Returns invalid_argument when the text has no whole window or a
// window is longer than the model's context.
Result<Perplexity> measure_perplexity(
    Decoder& decoder, ExpertBackend& experts, std::span<const TokenId> tokens,
    const PerplexityOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t, double)>& progress);

}  // namespace moex
