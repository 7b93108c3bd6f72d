// What lossy ways of computing cost: the same windows of a text by the exact model and by each of
// them, each with keys and values of its own, held to the text and to the exact model's logits.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "hub/engine/decoder.h"
#include "hub/engine/perplexity.h"
#include "hub/foresight/predict/recall.h"

namespace moex {

struct LossyWay {
    ExpertSpeculator* speculator = nullptr;  // null: only the backend is another
    ExpertBackend* experts = nullptr;        // null: the exact model's
};

struct Loss {
    Perplexity perplexity;
    double mean_kl = 0;            // KL(exact ‖ lossy) of the next token, nats
    std::uint64_t same_first = 0;  // predictions whose likeliest token is the exact model's
    Spread nll_excess;             // over windows, of their mean: lossy minus exact, nats
};

// The exact model's first, then each way's; the exact one's divergence is 0. Every row of a way is
// lossy, from the first token on. As measure_perplexity().
Result<std::vector<Loss>> measure_loss(
    Decoder& decoder, ExpertBackend& experts, std::span<const LossyWay> ways,
    std::span<const TokenId> tokens, const PerplexityOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t)>& progress);

}  // namespace moex
