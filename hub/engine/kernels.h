// The engine's inner loops other than its products (kernels/exact.h): norms, softmax, attention.
// They use Highway with dispatch at run time (baseline x86-64-v2) and are single-threaded. The
// arithmetic of a row, its order of sums included, never depends on how many rows are computed
// together. Twins in plain loops: kernels_plain.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hub/engine/kernels/exact.h"
#include "hub/engine/kv_dtype.h"

namespace moex {

// out = x / sqrt(mean(x²) + eps) · weight; all of the same size; out may be x.
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

// Attention over one stretch of cached rows, for queries that share one kv head: heads of one
// token, or of several. Rows of fewer bits are widened exactly, value by value as they are read, so
// that the bits equal those of load_kv_head() (kv_head.h) followed by f32.
// scores[r · scores_stride + t] = scale · q[r] · k[t]; q [num_rows, head_dim].
void attention_scores(RowsOut scores, RowsIn q, const KvRows& k, std::uint32_t num_tokens,
                      std::uint32_t head_dim, float scale);
// out[r] += sum over t of weights[r][t] · v[t].
void attention_mix(RowsOut out, RowsIn weights, const KvRows& v, std::uint32_t num_tokens,
                   std::uint32_t head_dim);

// Converts a cached row of halves, or of codes and their scales (kv_dtype.h), to f32.
void widen_halves(std::span<float> out, const std::byte* row);
void widen_codes(std::span<float> out, const std::byte* row);

}  // namespace moex
