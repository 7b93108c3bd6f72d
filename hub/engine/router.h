// Chooses the experts of a token: softmax over all experts in f32, then the top_k by probability,
// ties to the lower id. Source: transformers Qwen3MoeSparseMoeBlock.
#pragma once

#include <cstdint>
#include <span>

namespace moex {

struct RouterOptions {
    std::uint32_t top_k = 0;
    bool norm_topk_prob = false;  // if true, the chosen weights are scaled to sum to one
};

// Chooses the experts of one token from router_logits [num_experts]: writes expert_ids and
// expert_weights [top_k], by descending weight.
void route(std::span<const float> router_logits, const RouterOptions& options,
           std::span<std::uint16_t> expert_ids, std::span<float> expert_weights);

}  // namespace moex
