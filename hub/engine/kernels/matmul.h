// Computes several matrix products at once on the compute threads. The products that one layer
// needs side by side (q, k and v; gate and up; all experts of a round) run in one parallel loop, so
// that threads synchronise once and not once per matrix.
#pragma once

#include <functional>
#include <span>

#include "hub/base/thread_pool.h"
#include "hub/engine/kernels/exact.h"
#include "hub/engine/kernels/integer.h"

namespace moex {

// Number of floats that one range of a loop over rows processes at least (see loop_grain()). A
// range of this size takes about two microseconds.
inline constexpr std::size_t walk_floats = 8192;

// out [x.num_rows, weights.num_out] = x · weightsᵀ
struct MatmulJob {
    RowsOut out;
    WeightMatrix weights;
    RowsIn x;
};
void matmul(std::span<const MatmulJob> jobs, ThreadPool& threads);

// A matrix product with INT4 weights; `x` has the rows as int4_prepare() wrote them.
struct Int4MatmulJob {
    RowsOut out;
    Int4Matrix weights;
    RowsIn x;
};
void matmul_int4(std::span<const Int4MatmulJob> jobs, ThreadPool& threads);

// A matrix product in integer arithmetic, see kernels/integer.h.
struct PackedMatmulJob {
    RowsOut out;
    PackedMatrix weights;
    QuantizedRows x;
};
void matmul_packed(std::span<const PackedMatmulJob> jobs, ThreadPool& threads);

// A function that prepares a row of x before it is read, on the thread that reads the row. An empty
// function means that rows need no preparation.
using MakeRow = std::function<void(std::size_t row)>;
// Converts rows [x.num_rows, num_in] to codes, in `buffer`; `make` prepares each row of x first.
QuantizedRows quantize_rows(QuantizedBuffer& buffer, RowsIn x, std::uint32_t num_in,
                            std::uint32_t group_size, ThreadPool& threads,
                            const MakeRow& make = {});

}  // namespace moex
