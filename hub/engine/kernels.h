// The engine's inner loops beside its products (kernels/exact.h): norms, softmax, attention. By
// Highway with dispatch at run time (baseline x86-64-v2), single-threaded.
// A row's arithmetic, its order of sums included, never depends on how many rows
// are computed together. Twins in plain loops: kernels_plain.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hub/engine/kernels/exact.h"

namespace moex {

// out = x / sqrt(mean(x²) + eps) · weight; all of one size; out may be x.
void rms_norm(std::span<float> out, std::span<const float> x, std::span<const float> weight,
              float eps);
// exp(x − max) / sum, in place.
void softmax(std::span<float> x);
// The same without the division.
struct ExpSum {
    float max = 0, sum = 0;
};
ExpSum exp_below_max(std::span<float> x);
// log of the sum of exp(x).
float log_sum_exp(std::span<const float> x);

// Attention over one stretch of cached rows (row t at base + t · stride) for queries that share one
// kv head: heads of one token, or of several.
// scores[r · scores_stride + t] = scale · q[r] · k[t]; q [num_rows, head_dim].
void attention_scores(RowsOut scores, RowsIn q, const float* k, std::size_t k_stride,
                      std::uint32_t num_tokens, std::uint32_t head_dim, float scale);
// out[r] += sum over t of weights[r][t] · v[t].
void attention_mix(RowsOut out, RowsIn weights, const float* v, std::size_t v_stride,
                   std::uint32_t num_tokens, std::uint32_t head_dim);

// Cached values of fewer bits as f32: halves; and codes times a scale for each widened_group of
// them.
inline constexpr std::size_t widened_group = 32;
void widen_halves(std::span<float> out, const std::uint16_t* halves);
void widen_codes(std::span<float> out, const std::int8_t* codes, const float* scales);

}  // namespace moex
