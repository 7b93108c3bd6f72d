// Weights of which the experts arrive layer by layer.
#pragma once

#include <cstdint>

#include "hub/commands/gpu/package_weights.h"

namespace moex {

// The weights of a package of which the first `num_here` layers have arrived.
struct ArrivingWeights : PackageWeights {
    using PackageWeights::PackageWeights;
    bool is_here(const WeightPart& part) const override {
        return part.name != WeightPart::Name::ffn || part.layer < num_here;
    }
    std::uint32_t num_here = ~0u;
};

}  // namespace moex
