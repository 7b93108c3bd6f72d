// What a calibration text tells of each expert: how often it is asked, and its default vector, the
// mean of what it answers to the tokens that ask it.
// Source: "Speculating Experts Accelerates Inference for Mixture-of-Experts", section 3.1.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "hub/foresight/predict/windows.h"
#include "hub/model/package/side_file.h"

namespace moex {

struct ExpertProfile {
    std::uint32_t num_layers = 0, num_experts = 0, hidden_size = 0;
    std::uint64_t num_tokens = 0;        // of the text
    std::vector<std::uint64_t> uses;     // [num_layers, num_experts]; 0 in dense layers
    std::vector<float> default_vectors;  // [num_layers, num_experts, hidden_size]; 0 where unused

    std::span<const std::uint64_t> uses_of(std::uint32_t layer) const {
        return std::span(uses).subspan(std::size_t{layer} * num_experts, num_experts);
    }
    std::span<const float> default_vector(std::uint32_t layer, std::uint32_t expert) const {
        return std::span(default_vectors)
            .subspan((std::size_t{layer} * num_experts + expert) * hidden_size, hidden_size);
    }
};

// Gates are left out of the mean: a default vector is weighted where it is used. Sums run in f64 in
// the order of the text, so that neither threads nor chunks change a bit. `compute` answers single
// experts, `experts` the rounds of the walk.
Result<ExpertProfile> calibrate_experts(
    Decoder& decoder, ExpertBackend& experts, const ExpertCompute& compute,
    std::span<const TokenId> tokens, const WindowOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t)>& ended);

// As tensors of the side file default_vectors: layers.L.uses, f32 [num_experts],
// layers.L.default_vectors, bf16 [num_experts, hidden_size], and num_tokens, f32 [1].
std::vector<SideTensor> to_side_tensors(const ExpertProfile& profile, const ModelConfig& config);
// What the package holds of it; not_found where it holds none. An error names the tensor.
Result<ExpertProfile> load_expert_profile(const ModelPackage& package);

}  // namespace moex
