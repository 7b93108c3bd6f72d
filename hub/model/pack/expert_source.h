// Where the weights of one expert are stored in a model's tensors.
#pragma once

#include <cstdint>
#include <optional>

#include "hub/model/pack/readers/tensor_reader.h"

namespace moex {

// Position of a matrix inside a tensor of the model. The matrices of an expert may be separate
// tensors, or slices of one fused tensor.
struct ExpertMatrix {
    const TensorReader* tensor = nullptr;
    std::uint64_t first_row = 0;
    std::uint64_t row_step = 1;  // distance of two rows, or of two columns if transposed
    bool keeps_codes = false;    // true: the blob gets the file's INT4 codes unchanged
    // true: the matrix's rows are columns of the tensor, from first_column on, and its columns are
    // the tensor's rows from first_row on
    bool is_transposed = false;
    std::uint64_t first_column = 0;
};
// Biases of an expert in the tensors of all experts of a layer: gate_up [E, 2 I], down [E, H].
struct ExpertBiases {
    const TensorReader *gate_up = nullptr, *down = nullptr;
    std::uint64_t expert = 0;
    bool alternates = false;  // values of gate and up alternate
};
struct ExpertSource {
    ExpertMatrix gate, up, down;
    std::optional<ExpertBiases> biases = {};
};

}  // namespace moex
