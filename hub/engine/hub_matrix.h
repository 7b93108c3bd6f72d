// The hub's own matrices in the arithmetic that was asked for.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/kernels/matmul.h"

namespace moex {

// As the package has it, or packed: then `packed` has data and `exact` is not used.
struct HubMatrix {
    WeightMatrix exact;
    PackedMatrix packed;
};

// Memory of packed matrices, one behind the other in large pieces: so those that are smaller than a
// huge page lie in huge pages, too, and who asks for weights ahead finds the next matrix.
class PackedMemory {
  public:
    // At a multiple of 64; as long as this object. The process ends where there is no memory.
    std::byte* take(std::size_t size_bytes);

  private:
    std::vector<AlignedBuffer> pieces_;
    std::byte* next_ = nullptr;
    std::size_t left_bytes_ = 0;  // of the last piece; its pages are taken when they are written
};

// Packs `from`; `out` borrows from `memory`. A `group_size` of 0 is that of protocol/hub_codes.h.
void pack_hub_matrix(PackedMatrix& out, const WeightMatrix& from, PackedDtype dtype,
                     PackedMemory& memory, ThreadPool& threads, std::uint32_t group_size = 0);
// The codes that a package has, in panels: nothing is rounded.
void pack_hub_matrix(PackedMatrix& out, const Int8Matrix& from, PackedMemory& memory,
                     ThreadPool& threads);
void pack_hub_matrix(PackedMatrix& out, const Int4Matrix& from, PackedMemory& memory,
                     ThreadPool& threads);

struct HubProduct {
    RowsOut out;  // [x.num_rows, num_out]
    const HubMatrix* weights = nullptr;
};
// Several matrices of one arithmetic and num_in, times the same rows, each of which is `make`'s
// first; `buffer` is for their codes.
void multiply(std::span<const HubProduct> products, RowsIn x, QuantizedBuffer& buffer,
              ThreadPool& threads, const MakeRow& make = {});

}  // namespace moex
