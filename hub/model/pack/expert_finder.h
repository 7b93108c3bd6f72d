// Finds the weights of a layer's experts among a model's tensors. Checkpoints have one tensor per
// expert and matrix, or one for all experts of a layer; a GGUF file has one per matrix.
#pragma once

#include <cstdint>
#include <vector>

#include "hub/model/families.h"
#include "hub/model/pack/expert_source.h"
#include "hub/model/pack/readers/model_source.h"

namespace moex {

// A layer, and the sizes of its experts in the model.
struct ExpertPlace {
    const ModelSource& source;
    std::uint32_t layer = 0;
    std::uint64_t hidden = 0, inner = 0, count = 0;
    bool has_bias = false;
};
// Returns the experts in the family's own layout, or in a common one. An error names the tensor
// that is missing or has another shape.
Result<std::vector<ExpertSource>> find_experts(const ExpertPlace& place, const Family& family);

}  // namespace moex
