// The profile of each expert on a calibration text: the number of its uses, and its default vector,
// which is the mean of its answers over the tokens that use it. A default vector substitutes for an
// answer that is late, lost or not computed yet.
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
    std::uint64_t num_tokens = 0;  // number of tokens of the calibration text
    // [num_layers, num_experts], number of uses; 0 in dense layers
    std::vector<std::uint64_t> uses;
    // [num_layers, num_experts, hidden_size]; 0 for experts without uses
    std::vector<float> default_vectors;

    std::span<const std::uint64_t> uses_of(std::uint32_t layer) const {
        return std::span(uses).subspan(std::size_t{layer} * num_experts, num_experts);
    }
    std::span<const float> default_vector(std::uint32_t layer, std::uint32_t expert) const {
        return std::span(default_vectors)
            .subspan((std::size_t{layer} * num_experts + expert) * hidden_size, hidden_size);
    }
};

// Measures the profile on a text: counts uses and computes mean answers. The means do not contain
// gate weights, so the code that uses a default vector multiplies it by the gate weight. Sums are
// in f64 in the order of the text, so that neither the number of threads nor the size of chunks
// changes a bit. `compute` gives the answers that are averaged; `experts` computes the rounds while
// the model reads the text. The callback `ended(windows_done, windows)` may be empty.
Result<ExpertProfile> calibrate_experts(
    Decoder& decoder, ExpertBackend& experts, const ExpertCompute& compute,
    std::span<const TokenId> tokens, const WindowOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t)>& ended);

// Returns the tensors of the side file default_vectors: layers.L.uses, f32 [num_experts],
// layers.L.default_vectors, bf16 [num_experts, hidden_size], and num_tokens, f32 [1].
std::vector<SideTensor> to_side_tensors(const ExpertProfile& profile, const ModelConfig& config);
// Reads the side file default_vectors of a package. The error is not_found if there is none; other
// errors name the tensor that is wrong.
Result<ExpertProfile> load_expert_profile(const ModelPackage& package);

}  // namespace moex
