// The INT4 experts of a round, each over its rows: what the hub's local backend and a worker on the
// processor share, so that they give the same bits.
// Slots number the round's (expert, row) pairs: by expert, within one by row.
#pragma once

#include <span>
#include <vector>

#include "hub/engine/kernels/matmul.h"

namespace moex {

// Slots [first, first + count) are of one expert.
struct ExactExpert {
    std::uint32_t first = 0, count = 0;
    Int4Matrix gate_up, down;
};
struct PackedExpert {
    std::uint32_t first = 0, count = 0;
    PackedMatrix gate_up, down;
};

// y [slots, hidden_size] = expert(x[row_of_slot[slot]]), without gates. `experts` are of one shape
// and cover all slots in order. A slot's bits depend on nothing but its row and its expert.
// Thread-safe; a calling thread keeps its buffers.
void compute_experts(std::span<const ExactExpert> experts, RowsIn x,
                     std::span<const std::uint32_t> row_of_slot, float* y, ThreadPool& threads);
void compute_experts(std::span<const PackedExpert> experts, RowsIn x,
                     std::span<const std::uint32_t> row_of_slot, float* y, ThreadPool& threads);

}  // namespace moex
