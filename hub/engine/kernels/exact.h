// Products of f32 rows with weights in the package's dtypes (bf16, f32, INT4), and the steps of an
// expert between and after its products. They use Highway with dispatch at run time (baseline
// x86-64-v2). Single-threaded; matmul.h divides them over threads.
// The arithmetic of a row, its order of sums included, never depends on how many rows are computed
// together: each (row, output) has one accumulator vector, always summed from the first input to
// the last. Slow reference versions in plain loops: hub/engine/kernels_plain.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hub/engine/kernels/matrix.h"

namespace moex {

// out[r][n] = sum over k of x[r][k] · weights[n][k], for n in [out_begin, out_end).
void matmul(RowsOut out, const WeightMatrix& weights, RowsIn x, std::uint32_t out_begin,
            std::uint32_t out_end);

// int4_prepare() prepares the input rows of INT4 products, once per row: inputs are reordered to
// match the order of the codes in a word, scaled by 16^-k so that a code needs no shift (exact:
// powers of two), and followed by the sums of each group. `prepared` is [num_rows,
// int4_prepared_floats()].
std::size_t int4_prepared_floats(std::uint32_t num_in, std::uint32_t group_size);
void int4_prepare(RowsOut prepared, RowsIn x, std::uint32_t num_in, std::uint32_t group_size);
// out[r][n] = sum over groups of scale · (sum q · x − zero · sum x), where q are the codes of
// output n and x the inputs of row r.
void matmul_int4(RowsOut out, const Int4Matrix& weights, RowsIn prepared, std::uint32_t out_begin,
                 std::uint32_t out_end);

// out = silu(gate) · up, silu(v) = v / (1 + exp(−v)); out may be gate or up.
void silu_mul(std::span<float> out, std::span<const float> gate, std::span<const float> up);
// x += y
void add_to(std::span<float> x, std::span<const float> y);
// x += factor · y
void add_scaled_to(std::span<float> x, std::span<const float> y, float factor);
void scale_by(std::span<float> x, float factor);

// Returns the name of the instruction set in use, e.g. "AVX2".
const char* kernel_target();

}  // namespace moex
