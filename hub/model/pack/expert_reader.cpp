#include "hub/model/pack/expert_reader.h"

#include <algorithm>

namespace moex {
namespace {

struct Scratch {
    std::vector<float> rows;
    Bytes raw;
};

// Reads the first `source_rows` rows of a matrix into `out` [num_rows, row_size].
Status read_matrix(const ExpertMatrix& matrix, std::uint64_t source_rows, std::uint32_t row_size,
                   std::vector<float>& out, Scratch& scratch) {
    const std::uint64_t source_size = matrix.tensor->info().row_size();
    scratch.rows.resize(source_rows * source_size);
    MOEX_TRY(matrix.tensor->read_rows(matrix.first_row, scratch.rows, scratch.raw));
    for (std::uint64_t row = 0; row < source_rows; ++row)
        std::copy_n(scratch.rows.data() + row * source_size, source_size,
                    out.data() + row * row_size);
    return {};
}

}  // namespace

Result<ExpertWeights> read_expert_weights(const PackInput& input, const ExpertSource& source) {
    const std::uint32_t hidden = input.shape.hidden_size, inner = input.shape.moe_intermediate_size;
    const std::size_t size = std::size_t{hidden} * inner;
    ExpertWeights weights{input.shape, std::vector<float>(size), std::vector<float>(size),
                          std::vector<float>(size)};
    Scratch scratch;
    MOEX_TRY(read_matrix(source.gate, input.inner_size, hidden, weights.gate, scratch));
    MOEX_TRY(read_matrix(source.up, input.inner_size, hidden, weights.up, scratch));
    MOEX_TRY(read_matrix(source.down, hidden, inner, weights.down, scratch));
    return weights;
}

}  // namespace moex
