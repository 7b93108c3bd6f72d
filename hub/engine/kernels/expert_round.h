// Computes the experts of a round, in INT4 or MXFP4, each over its own rows. The hub's local
// backend and a worker that computes on the processor share this code, so that both give the same
// bits. A slot is the index of a (row, expert) pair of the round, with pairs sorted by expert, then
// by row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hub/engine/kernels/matmul.h"
#include "protocol/tensor_format.h"

namespace moex {

// The parts of an expert beyond its matrices (ExpertShape in protocol/tensor_format.h).
struct ExpertExtras {
    const float *gate_up_bias = nullptr, *down_bias = nullptr;  // [2 · I], [H]; null: none
    float clamp = 0;
};
// Adds the bias to the products gate · x and up · x of one slot, [2 · I], and changes them so that
// silu(gate) · up is the value of the clamped SwiGLU: gate becomes 1.702 · min(gate, clamp), and up
// becomes (clamp(up) + 1) / 1.702. Without extras nothing changes. The loops multiply and add in a
// fixed order, so the bits are the same on every instruction set.
void prepare_gate_up(std::span<float> gate_up, const ExpertExtras& extras);

// The matrices of an expert: as its blob has them, and in panels, without data.
struct ExpertMatrices {
    Int4Matrix gate_up, down;
};
ExpertMatrices expert_matrices(const ExpertBlobView& blob);
struct ExpertPanels {
    PackedMatrix gate_up, down;
};
ExpertPanels expert_panels(const ExpertShape& shape);

// An expert of the round; slots [first, first + count) belong to it.
struct ExactExpert {
    std::uint32_t first = 0, count = 0;
    Int4Matrix gate_up, down;
    ExpertExtras extras = {};
};
struct PackedExpert {
    std::uint32_t first = 0, count = 0;
    PackedMatrix gate_up, down;
    ExpertExtras extras = {};
};

// Computes y[slot] = expert(x[row_of_slot[slot]]) without gate weights; y is [num_slots,
// hidden_size]. All `experts` have the same shape, and together they cover all slots in order. The
// bits of a slot depend only on its row and its expert. Thread-safe: each calling thread has its
// own buffers.
void compute_experts(std::span<const ExactExpert> experts, RowsIn x,
                     std::span<const std::uint32_t> row_of_slot, float* y, ThreadPool& threads);
void compute_experts(std::span<const PackedExpert> experts, RowsIn x,
                     std::span<const std::uint32_t> row_of_slot, float* y, ThreadPool& threads);

}  // namespace moex
