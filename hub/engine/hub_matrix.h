// The hub's own matrices in the arithmetic that the operator chose.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/kernels/matmul.h"

namespace moex {

// A matrix as the package has it, or packed. If it is packed, `packed` has data and `exact` is not
// used.
struct HubMatrix {
    WeightMatrix exact;
    PackedMatrix packed;
};

// Memory of packed matrices, contiguous in large pieces. So matrices smaller than a huge page are
// in huge pages, too, and a prefetch past the end of a matrix loads the next one.
class PackedMemory {
  public:
    // Returns memory aligned to 64, valid as long as this object. Ends the process if there is no
    // memory.
    std::byte* take(std::size_t size_bytes);

  private:
    std::vector<AlignedBuffer> pieces_;
    std::byte* next_ = nullptr;
    std::size_t left_bytes_ = 0;  // of the last piece; a page is taken when it is written
};

// Packs `from`; `out` borrows from `memory`. A `group_size` of 0 means that of
// protocol/hub_codes.h.
void pack_hub_matrix(PackedMatrix& out, const WeightMatrix& from, PackedDtype dtype,
                     PackedMemory& memory, ThreadPool& threads, std::uint32_t group_size = 0);
// Puts the codes of a package into panels; nothing is rounded.
void pack_hub_matrix(PackedMatrix& out, const Int8Matrix& from, PackedMemory& memory,
                     ThreadPool& threads);
void pack_hub_matrix(PackedMatrix& out, const Int4Matrix& from, PackedMemory& memory,
                     ThreadPool& threads);

struct HubProduct {
    RowsOut out;  // [x.num_rows, num_out]
    const HubMatrix* weights = nullptr;
};
// Multiplies several matrices of the same arithmetic and num_in with the same rows. `make` prepares
// each row before it is read; `buffer` is for the rows' codes.
void multiply(std::span<const HubProduct> products, RowsIn x, QuantizedBuffer& buffer,
              ThreadPool& threads, const MakeRow& make = {});

}  // namespace moex
