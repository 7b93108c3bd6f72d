// Chooses the experts of a token by the router's logits, in the way that the layer's plan names
// (RouterPlan). Ties go to the lower id. Source: transformers' MoE blocks of Qwen3-MoE, Mixtral,
// OLMoE, Granite-MoE, gpt-oss and GLM-4 MoE.
#pragma once

#include <cstdint>
#include <span>

#include "hub/model/layer_plan.h"

namespace moex {

struct RouterOptions {
    std::uint32_t top_k = 0;
    RouterPlan plan = {};
    // [num_experts], for plans with a correction bias; it outlives the call
    std::span<const float> correction_bias = {};
};

// Chooses the experts of one token from router_logits [num_experts], which include the router's
// bias: writes expert_ids and expert_weights [top_k], the first choice first. The slow twin is
// plain::route() in kernels_plain.h.
void route(std::span<const float> router_logits, const RouterOptions& options,
           std::span<std::uint16_t> expert_ids, std::span<float> expert_weights);

}  // namespace moex
