// The INT4 experts of a round, each over its rows. The hub's local backend and a worker on the
// processor share this code, so that both give the same bits. Slots number the (row, expert) pairs
// of the round: sorted by expert, then by row.
#pragma once

#include <span>
#include <vector>

#include "hub/engine/kernels/matmul.h"

namespace moex {

// An expert of the round; slots [first, first + count) belong to it.
struct ExactExpert {
    std::uint32_t first = 0, count = 0;
    Int4Matrix gate_up, down;
};
struct PackedExpert {
    std::uint32_t first = 0, count = 0;
    PackedMatrix gate_up, down;
};

// y [slots, hidden_size] = expert(x[row_of_slot[slot]]), without gates. `experts` have one shape
// and cover all slots in order. The bits of a slot depend only on its row and its expert.
// Thread-safe; each calling thread keeps its buffers.
void compute_experts(std::span<const ExactExpert> experts, RowsIn x,
                     std::span<const std::uint32_t> row_of_slot, float* y, ThreadPool& threads);
void compute_experts(std::span<const PackedExpert> experts, RowsIn x,
                     std::span<const std::uint32_t> row_of_slot, float* y, ThreadPool& threads);

}  // namespace moex
