// The engine's inner loops except the matrix products (kernels/exact.h): norms, softmax, attention.
// They use Highway with dispatch at run time (baseline x86-64-v2) and are single-threaded. The
// arithmetic of a row, its order of sums included, never depends on how many rows are computed
// together. Slow reference versions in plain loops: kernels_plain.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hub/engine/kernels/exact.h"
#include "hub/engine/kv_dtype.h"

namespace moex {

// out = x / sqrt(mean(x²) + eps) · weight; all spans have the same size; out may be x.
void rms_norm(std::span<float> out, std::span<const float> x, std::span<const float> weight,
              float eps);
// Replaces each value by exp(value − max) / sum of these exponentials.
void softmax(std::span<float> x);
// Replaces each value by exp(value − max), a softmax without the division, and returns the maximum
// and the sum.
struct ExpSum {
    float max = 0, sum = 0;
};
ExpSum exp_below_max(std::span<float> x);
// Returns the logarithm of the sum of exp(x[i]).
float log_sum_exp(std::span<const float> x);

// Attention over consecutive cached rows, for queries that share one kv head: heads of one token,
// or of several tokens. Rows of fewer bits are widened to f32 exactly, value by value as they are
// read. So the result has the same bits as if load_kv_head() (kv_head.h) had converted the rows
// first.
// scores[r · scores_stride + t] = scale · q[r] · k[t]; q [num_rows, head_dim].
void attention_scores(RowsOut scores, RowsIn q, const KvRows& k, std::uint32_t num_tokens,
                      std::uint32_t head_dim, float scale);
// Adds the weighted values of cached rows to each query's result: out[r] += sum over t of
// weights[r][t] · v[t].
void attention_mix(RowsOut out, RowsIn weights, const KvRows& v, std::uint32_t num_tokens,
                   std::uint32_t head_dim);

// Convert a cached row to f32: widen_halves() from f16, widen_codes() from codes and their scales
// (kv_dtype.h).
void widen_halves(std::span<float> out, const std::byte* row);
void widen_codes(std::span<float> out, const std::byte* row);

}  // namespace moex
