#include "hub/foresight/predict/hints.h"

#include <algorithm>
#include <numeric>

namespace moex {

Hints::Hints(std::shared_ptr<const RouterGates> gates, std::unique_ptr<ExpertPredictor> predictor,
             std::uint32_t per_row, std::uint32_t lead)
    : gates_(std::move(gates)),
      predictor_(std::move(predictor)),
      per_row_(per_row),
      lead_(std::max(1u, lead)) {}

std::span<const ExpertHint> Hints::foresee(const RouteView& seen) {
    hints_.clear();
    predictor_->observe(seen);
    if (seen.num_tokens > rows_max) return hints_;

    const auto layers = gates_->moe_layers();
    const auto next = static_cast<std::size_t>(
        std::upper_bound(layers.begin(), layers.end(), seen.layer) - layers.begin());
    // At a token's first MoE layer, all layers within the lead must be predicted, since no earlier
    // layer has predicted them.
    const bool is_first = seen.layer <= layers.front();
    const std::size_t lead = std::min<std::size_t>(lead_, layers.size());
    add_layer(seen, next);
    for (std::size_t i = is_first ? 1 : std::max<std::size_t>(1, lead - 1); i < lead; ++i)
        add_layer(seen, next + i);
    return hints_;
}

void Hints::add_layer(const RouteView& seen, std::size_t index) {
    const auto layers = gates_->moe_layers();
    const bool is_of_next = index >= layers.size();
    const std::uint32_t layer = layers[index - (is_of_next ? layers.size() : 0)];
    confidence_.resize(seen.num_tokens * seen.num_experts);
    const bool is_known = is_of_next ? predictor_->predict_next_token(seen, layer, confidence_)
                                     : predictor_->predict(seen, layer, confidence_);
    if (is_known) append_hints(hints_, layer, confidence_, seen.num_experts, per_row_, order_);
}

void append_hints(std::vector<ExpertHint>& hints, std::uint32_t layer,
                  std::span<const float> confidence, std::size_t num_experts, std::uint32_t per_row,
                  std::vector<std::uint16_t>& order) {
    per_row = static_cast<std::uint32_t>(std::min<std::size_t>(per_row, num_experts));
    std::vector<std::uint32_t> best(num_experts, per_row);
    order.resize(num_experts);
    for (std::size_t row = 0; row < confidence.size() / num_experts; ++row) {
        const auto sure = confidence.subspan(row * num_experts, num_experts);
        std::iota(order.begin(), order.end(), std::uint16_t{0});
        std::partial_sort(order.begin(), order.begin() + per_row, order.end(),
                          [&](std::uint16_t a, std::uint16_t b) {
                              return sure[a] != sure[b] ? sure[a] > sure[b] : a < b;
                          });
        for (std::uint32_t rank = 0; rank < per_row; ++rank)
            best[order[rank]] = std::min(best[order[rank]], rank);
    }

    for (std::uint32_t rank = 0; rank < per_row; ++rank)
        for (std::size_t expert = 0; expert < num_experts; ++expert)
            if (best[expert] == rank)
                hints.push_back({.layer = static_cast<std::uint16_t>(layer),
                                 .expert = static_cast<std::uint16_t>(expert),
                                 .deadline_ms = 0,
                                 .confidence = static_cast<std::uint8_t>(255 * (per_row - rank) /
                                                                         (per_row + 1))});
}

}  // namespace moex
