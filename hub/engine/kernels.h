// The engine's inner loops, by Highway with dispatch at run time (baseline
// x86-64-v2). Single-threaded; matmul.h spreads them over threads.
// A row's arithmetic, its order of sums included, never depends on how many rows
// are computed together: one accumulator vector per (row, output), always walked
// from the first input to the last. Twins in plain loops: kernels_plain.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hub/engine/kernels/matrix.h"

namespace moex {

// out[r][n] = sum over k of x[r][k] · weights[n][k], for n in [out_begin, out_end).
void matmul(RowsOut out, const WeightMatrix& weights, RowsIn x, std::uint32_t out_begin,
            std::uint32_t out_end);

// INT4 takes its inputs prepared once per row: reordered to meet the codes as they lie
// in a word, scaled by 16^-k so that a code needs no shift (exact: powers of two), and
// followed by the sums of each group. prepared [num_rows, int4_prepared_floats()].
std::size_t int4_prepared_floats(std::uint32_t num_in, std::uint32_t group_size);
void int4_prepare(RowsOut prepared, RowsIn x, std::uint32_t num_in, std::uint32_t group_size);
// out[r][n] = sum over groups of scale · (sum q · x − zero · sum x).
void matmul_int4(RowsOut out, const Int4Matrix& weights, RowsIn prepared, std::uint32_t out_begin,
                 std::uint32_t out_end);

// out = x / sqrt(mean(x²) + eps) · weight; all of one size; out may be x.
void rms_norm(std::span<float> out, std::span<const float> x, std::span<const float> weight,
              float eps);
// out = silu(gate) · up, silu(v) = v / (1 + exp(−v)); out may be gate or up.
void silu_mul(std::span<float> out, std::span<const float> gate, std::span<const float> up);
// x += y
void add_to(std::span<float> x, std::span<const float> y);
// x += factor · y
void add_scaled_to(std::span<float> x, std::span<const float> y, float factor);
void scale_by(std::span<float> x, float factor);
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

// The instruction set in use, e.g. "AVX2".
const char* kernel_target();

}  // namespace moex
