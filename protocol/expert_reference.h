// What an expert call means, in plain loops: the twin
// of every kernel and of the hub's fast local path.
//   y = down · (silu(gate · x) * (up · x)), silu(v) = v / (1 + exp(-v))
// The double version judges kernels; the float version is the obvious implementation.
#pragma once

#include <span>
#include <vector>

#include "protocol/tensor_format.h"

namespace moex {

// A dequantised expert. gate, up: [I, H]; down: [H, I]; row-major.
struct ExpertWeights {
    ExpertShape shape;
    std::vector<float> gate, up, down;
};
ExpertWeights dequantize_expert(const ExpertBlobView& blob);

// intermediate [num_tokens, I] = silu(gate · x) * (up · x), x [num_tokens, H]
void expert_gate_up(std::span<double> intermediate, const ExpertWeights& weights,
                    std::span<const double> x);
// y [num_tokens, H] = down · intermediate
void expert_down(std::span<double> y, const ExpertWeights& weights,
                 std::span<const double> intermediate);
// Both. The scalar type is that of the sums.
void expert_reference(std::span<double> y, const ExpertWeights& weights, std::span<const double> x);
void expert_reference(std::span<float> y, const ExpertWeights& weights, std::span<const float> x);

// sqrt(sum (a - b)^2 / sum b^2): how kernels are compared; 0 when both are zero.
double normalized_rms_error(std::span<const float> a, std::span<const double> b);

// Packs gate, up [I, H] and down [H, I] into an INT4 blob by plain rounding with
// fractional zeros: per group, with min ≤ 0 ≤ max, scale = (max − min) / 15 (at least
// 2^-14), zero = −min / scale, code = round(w / scale + zero) clamped to 0..15, each
// with the stored f16 values. The baseline; hub/model may search for better scales.
Bytes quantize_expert_int4(const ExpertWeights& weights);

}  // namespace moex
