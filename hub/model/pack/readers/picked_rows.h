// A tensor that consists of rows of another one. Some checkpoints store several matrices in one
// tensor, grouped by head; the packer asks for each matrix by its own name:
//   q_proj [4 rows of q, 4 of the gate, 4 of q, 4 of the gate]   q_proj [0-3, 8-11], output_gate
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hub/model/pack/readers/tensor_reader.h"

namespace moex {

// Returns a matrix of the rows `rows` of `from`, in this order. A tensor with more than two
// dimensions counts as a matrix with rows of `from`'s last dimension.
std::unique_ptr<TensorReader> pick_rows(std::shared_ptr<const TensorReader> from, std::string name,
                                        std::vector<std::uint32_t> rows);

}  // namespace moex
