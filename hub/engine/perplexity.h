// Measures how well a model predicts a text: exp of the mean negative log-likelihood of its tokens.
// The text is cut into windows that do not overlap, and each window is a new sequence.
#pragma once

#include <functional>
#include <optional>
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
    // token before each window, for models that were trained with one before every text. The
    // predictions that are counted are the same with and without it.
    std::optional<TokenId> begin_token = std::nullopt;
};
struct Perplexity {
    double perplexity = 0;
    double mean_nll = 0;  // nats per token
    std::uint64_t num_predictions = 0;
    std::uint32_t num_windows = 0;
};
// The windows of a text, and a function that lets a model read one of them.
class TextWindows {
  public:
    // Returns invalid_argument when the text has no whole window or a window is longer than the
    // model's context. `tokens` is borrowed.
    static Result<TextWindows> create(std::span<const TokenId> tokens, const ModelConfig& config,
                                      const PerplexityOptions& options);
    std::uint32_t size() const { return num_windows_; }
    // Calls take(logits [vocab_size], next) for each prediction of a window, in order. `next` is
    // the token that the text has there.
    Status read(std::uint32_t window, Decoder& decoder, ExpertBackend& experts, KvCache& cache,
                const std::function<void(std::span<const float> logits, TokenId next)>& take) const;
    // Returns the cache that read() needs.
    KvCache make_cache(const ModelConfig& config, KvDtype dtype) const;

  private:
    TextWindows(std::span<const TokenId> tokens, const PerplexityOptions& options)
        : tokens_(tokens),
          options_(options) {}
    std::span<const TokenId> tokens_;
    PerplexityOptions options_;
    std::uint32_t num_windows_ = 0;
};

// Measures the perplexity of the text `tokens`. The callback `progress(windows_done, windows,
// perplexity_so_far)` may be empty. Returns invalid_argument when the text has no whole window or a
// window is longer than the model's context.
Result<Perplexity> measure_perplexity(
    Decoder& decoder, ExpertBackend& experts, std::span<const TokenId> tokens,
    const PerplexityOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t, double)>& progress);

}  // namespace moex
