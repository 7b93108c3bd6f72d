// Views of a reused buffer as contiguous rows of `size` floats each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hub/engine/kernels/matrix.h"

namespace moex {

inline std::span<float> row_of(std::vector<float>& buffer, std::size_t row, std::size_t size) {
    return std::span(buffer).subspan(row * size, size);
}
inline RowsIn rows_in(const std::vector<float>& buffer, std::size_t size, std::size_t num_rows) {
    return {buffer.data(), size, static_cast<std::uint32_t>(num_rows)};
}
// Returns `num_rows` rows of the buffer for writing, and grows the buffer if it is too small.
inline RowsOut rows_out(std::vector<float>& buffer, std::size_t size, std::size_t num_rows) {
    if (buffer.size() < size * num_rows) buffer.resize(size * num_rows);
    return {buffer.data(), size};
}

}  // namespace moex
