// Experts in integers where GoogleTest is not: the same cases in a native program and in WASM.
#pragma once

#include <string>

#include "hub/engine/kernels/expert_round.h"
#include "protocol/tensor_format.h"

namespace moex {

// Random codes, scales and zeros of a formula, in panels or as they are published.
struct FormulaExpert {
    FormulaExpert(const ExpertShape& shape, std::uint32_t seed);
    Bytes blob;
    AlignedBuffer panels;
    PackedExpert packed;  // over all slots that a caller gives it
    ExactExpert exact;
};
std::vector<float> formula_rows(std::uint32_t num_rows, std::uint32_t row_size, std::uint32_t seed);

// In which cases the best path of this machine does not give the bits of the portable loops, one a
// line; empty: in none.
std::string integer_disagreements();

// FNV-1a over the bits of one round's answers: the same on every machine.
std::uint64_t answers_digest(ThreadPool& threads);
inline constexpr std::uint64_t expected_answers_digest = 0xd724b514f8799f2cu;

}  // namespace moex
