#include "hub/engine/layer_ropes.h"

#include <algorithm>

namespace moex {

LayerRopes::LayerRopes(const ModelConfig& config) {
    std::vector<RopePlan> plans;
    for (const LayerPlan& layer : config.layers) {
        const auto found = std::find(plans.begin(), plans.end(), layer.rope);
        index_.push_back(static_cast<std::size_t>(found - plans.begin()));
        if (found != plans.end()) continue;

        const std::uint32_t size = layer.rope.rotary_size > 0 ? layer.rope.rotary_size
                                                              : config.head_dim;
        plans.push_back(layer.rope);
        ropes_.push_back({Rope(size, layer.rope.theta, layer.rope.scaling), row_size_});
        row_size_ += size;
    }
}

void LayerRopes::angles(std::uint32_t position, std::span<float> row) const {
    for (const One& one : ropes_)
        one.rope.angles(position, row.subspan(one.first, one.rope.rotary_size()));
}

}  // namespace moex
