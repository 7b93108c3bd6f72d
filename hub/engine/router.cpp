#include "hub/engine/router.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "hub/engine/kernels.h"

namespace moex {
namespace {

// Writes the ids of the largest values of `by`, the largest first.
void choose(std::span<const float> by, std::span<std::uint16_t> expert_ids) {
    thread_local std::vector<std::uint16_t> order;
    order.resize(by.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint16_t>(i);
    std::partial_sort(
        order.begin(), order.begin() + static_cast<std::ptrdiff_t>(expert_ids.size()), order.end(),
        [&](std::uint16_t a, std::uint16_t b) { return by[a] != by[b] ? by[a] > by[b] : a < b; });
    std::copy_n(order.begin(), expert_ids.size(), expert_ids.begin());
}

// Returns the sum of the two largest scores.
float best_two(std::span<const float> scores) {
    float first = scores[0], second = 0;
    for (std::size_t i = 1; i < scores.size(); ++i) {
        const float smaller = std::min(first, scores[i]);
        second = i == 1 ? smaller : std::max(second, smaller);
        first = std::max(first, scores[i]);
    }
    return first + second;
}

// Sets the scores of all experts outside the kept groups to 0.
void drop_groups(std::span<float> scores, const RouterPlan& plan) {
    if (plan.num_groups <= 1) return;
    const std::size_t group_size = scores.size() / plan.num_groups;
    std::vector<float> sums;
    for (std::size_t group = 0; group < plan.num_groups; ++group)
        sums.push_back(best_two(scores.subspan(group * group_size, group_size)));
    std::vector<std::uint16_t> kept(plan.groups_kept);
    choose(sums, kept);
    for (std::size_t i = 0; i < scores.size(); ++i)
        if (std::find(kept.begin(), kept.end(), i / group_size) == kept.end()) scores[i] = 0;
}

void score_by_sigmoid(std::span<const float> router_logits, const RouterOptions& options,
                      std::span<std::uint16_t> expert_ids, std::span<float> expert_weights) {
    thread_local std::vector<float> scores, choice;
    scores.resize(router_logits.size());
    for (std::size_t i = 0; i < scores.size(); ++i)
        scores[i] = 1.0f / (1.0f + std::exp(-router_logits[i]));
    choice = scores;
    if (!options.correction_bias.empty()) add_to(choice, options.correction_bias);
    drop_groups(choice, options.plan);
    choose(choice, expert_ids);
    for (std::size_t i = 0; i < expert_ids.size(); ++i) expert_weights[i] = scores[expert_ids[i]];
}

}  // namespace

void route(std::span<const float> router_logits, const RouterOptions& options,
           std::span<std::uint16_t> expert_ids, std::span<float> expert_weights) {
    thread_local std::vector<float> probabilities;
    expert_ids = expert_ids.first(options.top_k);
    expert_weights = expert_weights.first(options.top_k);
    switch (options.plan.score) {
        case RouterScore::softmax:
            probabilities.assign(router_logits.begin(), router_logits.end());
            softmax(probabilities);
            // Choose by logit, not by probability: different logits may round to equal
            // probabilities.
            choose(router_logits, expert_ids);
            for (std::uint32_t i = 0; i < options.top_k; ++i)
                expert_weights[i] = probabilities[expert_ids[i]];
            break;
        case RouterScore::softmax_of_chosen:
            choose(router_logits, expert_ids);
            for (std::uint32_t i = 0; i < options.top_k; ++i)
                expert_weights[i] = router_logits[expert_ids[i]];
            softmax(expert_weights);
            break;
        case RouterScore::sigmoid:
            score_by_sigmoid(router_logits, options, expert_ids, expert_weights);
            break;
    }

    if (options.plan.is_normalised) {
        float sum = 0;
        for (const float weight : expert_weights) sum += weight;
        if (options.plan.score == RouterScore::sigmoid) sum += 1e-20f;
        for (float& weight : expert_weights) weight /= sum;
    }
    if (options.plan.scaling != 1.0)
        scale_by(expert_weights, static_cast<float>(options.plan.scaling));
}

}  // namespace moex
