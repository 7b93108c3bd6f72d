// A shadow beside the served model: some windows as the model goes through them, and the shadow on
// the same attention, routers and head, its experts its own. Recall is what the shadow's routers
// said of a position against what the model's chose there.
// Alignment, every so many tokens: the shadow is given the model's token in place of its own; the
// model's keys and values of the positions before take the place of its own. What a position adds
// to the cache itself is the shadow's until the next alignment.
// Source: "OD-MoE: On-Demand Expert Loading for Cacheless Edge-Distributed MoE Inference", 3.2.
#pragma once

#include <span>
#include <vector>

#include "hub/engine/decoder.h"
#include "hub/foresight/predict/recall.h"

namespace moex {

// Periods in tokens; 0: never.
struct ShadowAlignment {
    std::uint32_t token_period = 1, kv_period = 0;
};

struct ShadowTrialOptions {
    std::uint32_t windows_max = 8;  // side by side
    std::uint32_t num_tokens = 512;
    // From here on the model and the shadow are compared, and tokens are the model's own choice
    // (the largest logit); 0: all are given.
    std::uint32_t prompt_tokens = 0;
    KvDtype kv_dtype = KvDtype::f32;
};

// What one more token of all windows takes, on average, where tokens are decoded one by one: what a
// shadow that departs late is late by. Aligned, it begins `align` behind the token, and names a
// layer after its share of `shadow`.
struct ShadowTimes {
    double served_ms = 0, shadow_ms = 0, align_ms = 0;
};

class ShadowTrial {
  public:
    ShadowTrial(Decoder& decoder, const ShadowTrialOptions& options);

    // The model reads these windows: num_tokens each, of which prompt_tokens count where that is
    // not 0. What was there before is forgotten.
    Status serve(std::span<const std::span<const TokenId>> windows, ExpertBackend& experts);
    // The shadow reads the same. Each meter hears all positions from prompt_tokens on, window by
    // window; the place of a token counts from there. Layers of meters are MoE layers.
    Status follow(ShadowAlignment alignment, ExpertBackend& shadow,
                  std::span<RecallMeter* const> meters);

    // Of the last serve() and follow(); zeros without a prompt: texts are read in chunks.
    const ShadowTimes& times() const { return times_; }
    std::uint64_t kv_token_bytes() const;  // of one position in the cache, all layers
    std::span<const TokenId> tokens(std::size_t window) const { return windows_[window].tokens; }

  private:
    struct Window {
        KvCache::Sequence served, shadow;
        std::vector<TokenId> tokens;       // as the model read them
        TokenId shadow_token = 0;          // what the shadow would go on with
        std::vector<std::uint16_t> asked;  // [num_tokens, moe_layers, top_k]
        std::vector<float> said;           // [num_tokens, moe_layers, num_experts]
    };
    Window& window_of(const KvCache::Sequence* kv, bool is_shadow);
    Status generate(ExpertBackend& experts, const RouteWatch& watch);
    void align_kv(std::uint32_t from, std::uint32_t to);
    // The rows [position, position + count) of each window, with logits of the last where wanted.
    Status step_shadow(std::uint32_t position, std::uint32_t count, bool own_token, bool logits,
                       ExpertBackend& shadow);
    void tell(std::span<RecallMeter* const> meters) const;
    double num_answered() const;  // tokens, where there is a prompt

    Decoder& decoder_;
    ShadowTrialOptions options_;
    std::vector<std::uint32_t> index_of_layer_;  // among the MoE layers
    std::uint32_t num_moe_layers_ = 0;
    KvCache cache_;
    std::vector<Window> windows_;
    ShadowTimes times_;
};

}  // namespace moex
