// The gated delta rule: a mixer of tokens that remembers one matrix S per head, whatever the length
// of the sequence, instead of keys and values. With a token's log decay g and its strength β:
//   S ← e^g S;  δ = β (v − Sᵀ k);  S ← S + k δᵀ;  out = Sᵀ q        S = 0 before the first token
// S is stored as it was at a border, a multiple of delta_chunk positions, beside the rows (k, δ, g)
// of the positions since the border:
//   positions 0 ... 15 | 16 17 18        S as it was before position 16; rows of 16, 17 and 18
// A row is computed from S at the border of its own chunk and from the rows of that chunk, in one
// order of sums. So a row has the same bits however the text is cut into steps. A roll-back drops
// rows and changes no S. S is read once per step and written once per chunk.
// Slow reference version: delta_rule_plain.h.
// Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hub/engine/kernels/matrix.h"

namespace moex {

inline constexpr std::uint32_t delta_chunk = 8;
// Largest number of rows of DeltaMemory::append(): a token and eight drafted ones.
inline constexpr std::uint32_t delta_append_max = delta_chunk + 1;

struct DeltaShape {
    std::uint32_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;

    // Value head j belongs to key head j / values_per_key().
    std::uint32_t values_per_key() const { return value_heads / key_heads; }
};

// Rows of consecutive positions of one sequence in one layer.
struct DeltaRows {
    std::uint32_t first_position = 0;
    // The sequence will not be rolled back to a position before this one: the position of the first
    // row of the step, of which these rows may be a part.
    std::uint32_t settled_position = 0;
    RowsIn q, k;             // [num_rows, key_heads, key_dim]
    RowsIn v;                // [num_rows, value_heads, value_dim]
    RowsIn log_decay, beta;  // [num_rows, value_heads]; log_decay ≤ 0
    RowsOut out;             // [num_rows, value_heads, value_dim]

    std::uint32_t end_position() const { return first_position + q.num_rows; }
};

// The memory of one sequence in one layer. It borrows its floats and its border, which the caller
// keeps together. Rows from position 0 on begin a new text, whatever the memory holds.
//
// For the rows of a step, or of a part of it, append() or extend() is called once for each key
// head, on any threads, and then the function that finishes. The memory then holds the rows of all
// positions from the border to the rows' end. Rows behind the settled position may be stale: a step
// that failed, or that was rolled back, is repeated by the same calls.
class DeltaMemory {
  public:
    static std::size_t num_floats(const DeltaShape& shape);
    // The first floats of a memory: S of all value heads.
    static std::size_t num_matrix_floats(const DeltaShape& shape);

    DeltaMemory(const DeltaShape& shape, std::span<float> floats, std::uint32_t& border);

    // Adds rows up to settled_position + delta_append_max. Until the next step the sequence may be
    // rolled back to any position from the settled one on.
    void append(const DeltaRows& rows, std::uint32_t key_head);
    void finish_append(const DeltaRows& rows);
    // Stores the memory `from` with any number of rows added. `from` may be this memory; otherwise
    // it stays as it is. The sequence cannot be rolled back in this memory. Both memories have the
    // same shape.
    void extend(const DeltaMemory& from, const DeltaRows& rows, std::uint32_t key_head);
    void finish_extend(const DeltaRows& rows);

    // Returns S of all value heads as it is before `position`, [value_heads, key_dim, value_dim].
    // The memory holds the rows of all positions from the border to there; behind the border these
    // are at most 2 * delta_chunk. A row that is computed from it has not the bits of append().
    std::vector<float> matrices_before(std::uint32_t position) const;

  private:
    class Head;

    DeltaShape shape_;
    std::span<float> floats_;
    std::uint32_t* border_;
};

}  // namespace moex
