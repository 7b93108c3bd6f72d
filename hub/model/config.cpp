#include "hub/model/config.h"

#include <algorithm>

namespace moex {

ExpertShape ModelConfig::expert_shape(std::uint32_t group_size) const {
    ExpertShape shape{hidden_size, moe_intermediate_size, group_size};
    const auto routed = std::find_if(layers.begin(), layers.end(),
                                     [](const LayerPlan& plan) { return plan.is_routed; });
    if (routed == layers.end()) return shape;
    shape.has_bias = routed->has_expert_bias;
    if (routed->activation == Activation::clamped_swiglu)
        shape.clamp = static_cast<float>(routed->activation_limit);
    return shape;
}

std::vector<std::uint8_t> ModelConfig::layer_is_moe() const {
    std::vector<std::uint8_t> is_moe;
    for (const LayerPlan& plan : layers) is_moe.push_back(plan.is_routed ? 1 : 0);
    return is_moe;
}

}  // namespace moex
