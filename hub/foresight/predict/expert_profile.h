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
    std::uint64_t num_tokens = 0;        // tokens of the text
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

// Counts uses and means on a text. The means exclude the gate weights; the user of a default vector
// applies the weight. Sums are in f64 in the order of the text, so that the number of threads and
// the chunks change no bit. `compute` answers single experts; `experts` answers the rounds of the
// walk. `ended(windows_done, windows)` may be empty.
Result<ExpertProfile> calibrate_experts(
    Decoder& decoder, ExpertBackend& experts, const ExpertCompute& compute,
    std::span<const TokenId> tokens, const WindowOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t)>& ended);

// Returns the tensors of the side file default_vectors: layers.L.uses, f32 [num_experts],
// layers.L.default_vectors, bf16 [num_experts, hidden_size], and num_tokens, f32 [1].
std::vector<SideTensor> to_side_tensors(const ExpertProfile& profile, const ModelConfig& config);
// Reads the side file. not_found: the package has none. Other errors name the tensor that is wrong.
Result<ExpertProfile> load_expert_profile(const ModelPackage& package);

}  // namespace moex
