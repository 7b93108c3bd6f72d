#include "hub/engine/router.h"

#include <algorithm>
#include <vector>

#include "hub/engine/kernels.h"

namespace moex {

void route(std::span<const float> router_logits, const RouterOptions& options,
           std::span<std::uint16_t> expert_ids, std::span<float> expert_weights) {
    thread_local std::vector<float> probabilities;
    thread_local std::vector<std::uint16_t> order;
    probabilities.assign(router_logits.begin(), router_logits.end());
    softmax(probabilities);

    order.resize(router_logits.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint16_t>(i);

    // Sort by logit, not by probability: different logits may round to equal probabilities.
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(),
                      [&](std::uint16_t a, std::uint16_t b) {
                          return router_logits[a] != router_logits[b]
                                     ? router_logits[a] > router_logits[b]
                                     : a < b;
                      });

    float sum = 0;
    for (std::uint32_t i = 0; i < options.top_k; ++i) {
        expert_ids[i] = order[i];
        expert_weights[i] = probabilities[order[i]];
        sum += expert_weights[i];
    }

    if (options.norm_topk_prob)
        for (float& weight : expert_weights) weight /= sum;
}

}  // namespace moex
