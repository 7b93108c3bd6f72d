// The reference implementation of an expert call, in plain loops. Tests compare every kernel and
// the hub's fast local path with it.
//   y = down · (silu(gate · x) * (up · x)), silu(v) = v / (1 + exp(-v))
// or with the biases and the clamp of ExpertShape.
// The version with double sums is the reference for kernels. The version with float sums is the
// obvious implementation.
#pragma once

#include <span>
#include <vector>

#include "protocol/tensor_format.h"

namespace moex {

// The weights of an expert as f32, row-major. gate and up are [I, H], and down is [H, I].
struct ExpertWeights {
    ExpertShape shape;
    std::vector<float> gate, up, down;
    std::vector<float> gate_bias, up_bias, down_bias;  // [I], [I], [H]; empty without biases
};
ExpertWeights dequantize_expert(const ExpertBlobView& blob);

// Computes the first half of an expert: intermediate [num_tokens, I] = silu(gate · x) * (up · x),
// with x [num_tokens, H].
void expert_gate_up(std::span<double> intermediate, const ExpertWeights& weights,
                    std::span<const double> x);
// Computes the second half of an expert: y [num_tokens, H] = down · intermediate.
void expert_down(std::span<double> y, const ExpertWeights& weights,
                 std::span<const double> intermediate);
// Computes y [num_tokens, H] of an expert from x in both steps. The scalar type is the type in
// which sums are computed.
void expert_reference(std::span<double> y, const ExpertWeights& weights, std::span<const double> x);
void expert_reference(std::span<float> y, const ExpertWeights& weights, std::span<const float> x);

// Returns the relative error sqrt(sum (a - b)^2 / sum b^2), the measure by which kernels are
// compared. The result is 0 when both inputs are zero.
double normalized_rms_error(std::span<const float> a, std::span<const double> b);

// Packs gate, up [I, H] and down [H, I] into a blob of the codes that the shape names.
// INT4: plain rounding with fractional zeros. Per group, with min ≤ 0 ≤ max: scale = (max − min) /
// 15 (at least 2^-14), zero = −min / scale, code = round(w / scale + zero) clamped to 0..15. Each
// step uses the stored f16 values. This function is the baseline for tests; hub/model may search
// for better scales. MXFP4: per block of 32 the smallest power of two with which no value exceeds
// 6, and nearest codes.
Bytes quantize_expert(const ExpertWeights& weights);

}  // namespace moex
