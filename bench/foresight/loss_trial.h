// Measures the quality that lossy modes cost. The exact model and each mode read the same windows
// of a text, each with its own keys and values. Each mode is compared with the text and with the
// exact model's logits.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bench/foresight/recall.h"
#include "hub/engine/decoder.h"
#include "hub/engine/perplexity.h"

namespace moex::bench {

struct LossyMode {
    ExpertSpeculator* speculator = nullptr;  // null: the mode differs only in its backend
    ExpertBackend* experts = nullptr;        // null: the mode uses the exact backend
};

struct Loss {
    Perplexity perplexity;
    double mean_kl = 0;            // KL(exact ‖ lossy) of the next token, in nats
    std::uint64_t same_first = 0;  // predictions with the exact model's likeliest token
    Spread nll_excess;             // over windows: lossy minus exact mean NLL of a window, nats
};

// Returns the loss of the exact model, whose divergence is 0, and then of each mode. Every row of a
// mode is lossy, from the first token on. Returns the same errors as measure_perplexity().
Result<std::vector<Loss>> measure_loss(
    Decoder& decoder, ExpertBackend& experts, std::span<const LossyMode> modes,
    std::span<const TokenId> tokens, const PerplexityOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t)>& progress);

}  // namespace moex::bench
