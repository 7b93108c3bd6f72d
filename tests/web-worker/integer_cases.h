// Test cases for experts in integer arithmetic, without GoogleTest: a native program and WASM run
// the same cases.
#pragma once

#include <string>

#include "hub/engine/kernels/expert_round.h"
#include "protocol/tensor_format.h"

namespace moex {

// An expert with random codes, scales and zeros, made from a formula, as panels or in the published
// layout.
struct FormulaExpert {
    FormulaExpert(const ExpertShape& shape, std::uint32_t seed);
    Bytes blob;
    AlignedBuffer panels;
    PackedExpert packed;  // the caller sets the range of slots to compute
    ExactExpert exact;
};
std::vector<float> formula_rows(std::uint32_t num_rows, std::uint32_t row_size, std::uint32_t seed);

// Runs all cases. Returns a line for each case in which this machine's fastest path gives other
// bits than the portable loops; empty if there is no such case.
std::string integer_disagreements();

// Returns a digest (FNV-1a) of the bits of a round's answers. It must be the same on every machine.
std::uint64_t answers_digest(ThreadPool& threads);
inline constexpr std::uint64_t expected_answers_digest = 0xd724b514f8799f2cu;

}  // namespace moex
