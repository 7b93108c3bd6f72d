// The hub's own matrices in the arithmetic that was asked for.
#pragma once

#include <span>

#include "hub/base/thread_pool.h"
#include "hub/engine/kernels/matmul.h"

namespace moex {

// As the package has it, or packed: then `packed` has data and `exact` is not used.
struct HubMatrix {
    WeightMatrix exact;
    PackedMatrix packed;
};

// Packs `from` to int8, or to int4 in groups of 32, in memory that is returned; `out` borrows it.
AlignedBuffer pack_hub_matrix(PackedMatrix& out, const WeightMatrix& from, PackedDtype dtype,
                              ThreadPool& threads);
// The codes that a package has, in panels: nothing is rounded.
AlignedBuffer pack_hub_matrix(PackedMatrix& out, const Int8Matrix& from, ThreadPool& threads);
AlignedBuffer pack_hub_matrix(PackedMatrix& out, const Int4Matrix& from, ThreadPool& threads);

struct HubProduct {
    RowsOut out;  // [x.num_rows, num_out]
    const HubMatrix* weights = nullptr;
};
// Several matrices of one arithmetic and num_in, times the same rows; `buffer` is for their codes.
void multiply(std::span<const HubProduct> products, RowsIn x, QuantizedBuffer& buffer,
              ThreadPool& threads);

}  // namespace moex
