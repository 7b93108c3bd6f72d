// A trial of a shadow beside the model. The model reads some windows; the shadow reads them with
// the same attention, routers and head, and with its own experts. Recall compares the choice of the
// shadow's routers at a position with the choice of the model's routers. Alignment has two periods
// in tokens. At an alignment in tokens the shadow reads the model's token instead of its own. At an
// alignment in keys the model's keys and values of the positions before replace the shadow's. The
// rows of later positions are the shadow's own until the next alignment. Source: "OD-MoE: On-Demand
// Expert Loading for Cacheless Edge-Distributed MoE Inference", 3.2.
#pragma once

#include <span>
#include <vector>

#include "bench/foresight/recall.h"
#include "hub/engine/decoder.h"

namespace moex::bench {

// Periods of the two alignments, in tokens; 0: never aligned.
struct ShadowAlignment {
    std::uint32_t token_period = 1, kv_period = 0;
};

struct ShadowTrialOptions {
    std::uint32_t windows_max = 8;  // the most windows that are read together
    std::uint32_t num_tokens = 512;
    // Number of prompt tokens, and so the first position that is compared. From this position on
    // the tokens are the model's own choice (the largest logit). 0: all tokens are those of the
    // text.
    std::uint32_t prompt_tokens = 0;
    KvDtype kv_dtype = KvDtype::f32;
};

// The mean time to process one more token of all windows, if tokens are decoded one at a time. It
// gives the lateness of a shadow that departs late: an aligned shadow begins `align_ms` after the
// token is known, and predicts a layer after that layer's share of `shadow_ms`.
struct ShadowTimes {
    double served_ms = 0, shadow_ms = 0, align_ms = 0;
};

// Runs the model and then a shadow over the same windows.
class ShadowTrial {
  public:
    ShadowTrial(Decoder& decoder, const ShadowTrialOptions& options);

    // Lets the model read these windows of num_tokens each; if prompt_tokens is not 0, it reads
    // only the first prompt_tokens of each window and then generates the following tokens. Earlier
    // windows are forgotten.
    Status serve(std::span<const std::span<const TokenId>> windows, ExpertBackend& experts);
    // Lets the shadow read the same windows. Each meter records all positions from prompt_tokens
    // on, window by window, with token indices counted from that position. The layers of a meter
    // are MoE layers.
    Status follow(ShadowAlignment alignment, ExpertBackend& shadow,
                  std::span<RecallMeter* const> meters);

    // Times of the last serve() and follow(); zeros if prompt_tokens is 0, because texts are read
    // in chunks.
    const ShadowTimes& times() const { return times_; }
    std::uint64_t kv_token_bytes() const;  // bytes of one position in the cache, over all layers
    std::span<const TokenId> tokens(std::size_t window) const { return windows_[window].tokens; }

  private:
    struct Window {
        KvCache::Sequence served, shadow;
        std::vector<TokenId> tokens;       // the tokens that the model read
        TokenId shadow_token = 0;          // the token with the shadow's largest logit
        std::vector<std::uint16_t> asked;  // [num_tokens, moe_layers, top_k]
        std::vector<float> said;           // [num_tokens, moe_layers, num_experts]
    };
    Window& window_of(const KvCache::Sequence* kv, bool is_shadow);
    Status generate(ExpertBackend& experts, const RouteWatch& watch);
    void align_kv(std::uint32_t from, std::uint32_t to);
    // Computes the rows [position, position + count) of each window; computes logits of the last
    // row if `logits` is set.
    Status step_shadow(std::uint32_t position, std::uint32_t count, bool own_token, bool logits,
                       ExpertBackend& shadow);
    void tell(std::span<RecallMeter* const> meters) const;
    double num_answered() const;  // generated tokens: those after the prompts

    Decoder& decoder_;
    ShadowTrialOptions options_;
    std::vector<std::uint32_t> index_of_layer_;  // index of a layer among the MoE layers
    std::uint32_t num_moe_layers_ = 0;
    KvCache cache_;
    std::vector<Window> windows_;
    ShadowTimes times_;
};

}  // namespace moex::bench
