// The matrices that the hub itself multiplies (not the experts'), in the arithmetic that the
// operator chose.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/kernels/matmul.h"

namespace moex {

// A weight matrix, either in the package's form or packed. If it is packed, `packed` has data and
// `exact` is not used.
struct HubMatrix {
    WeightMatrix exact;
    PackedMatrix packed;
};

// Memory of packed matrices, contiguous in large pieces. So small matrices are in huge pages, too,
// and a prefetch past the end of a matrix loads the next matrix.
class PackedMemory {
  public:
    // Returns memory aligned to 64 bytes, which is valid as long as this object exists. Ends the
    // process if there is no memory.
    std::byte* take(std::size_t size_bytes);

  private:
    std::vector<AlignedBuffer> pieces_;
    std::byte* next_ = nullptr;
    // free bytes of the latest piece; the system provides a page when it is first written
    std::size_t left_bytes_ = 0;
};

// Packs the weights `from` into `out`, with its data in `memory`. A `group_size` of 0 means the
// group size of protocol/hub_codes.h.
void pack_hub_matrix(PackedMatrix& out, const WeightMatrix& from, PackedDtype dtype,
                     PackedMemory& memory, ThreadPool& threads, std::uint32_t group_size = 0);
// Reorder the codes of the package's matrix into panels; nothing is rounded.
void pack_hub_matrix(PackedMatrix& out, const Int8Matrix& from, PackedMemory& memory,
                     ThreadPool& threads);
void pack_hub_matrix(PackedMatrix& out, const Int4Matrix& from, PackedMemory& memory,
                     ThreadPool& threads);

struct HubProduct {
    RowsOut out;  // [x.num_rows, num_out]
    const HubMatrix* weights = nullptr;
};
// Multiplies several matrices, which have the same arithmetic and num_in, with the same rows x.
// `make` prepares each row of x before it is read; `buffer` holds the rows as codes.
void multiply(std::span<const HubProduct> products, RowsIn x, QuantizedBuffer& buffer,
              ThreadPool& threads, const MakeRow& make = {});

}  // namespace moex
