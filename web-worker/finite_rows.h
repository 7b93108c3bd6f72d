// Checks that an answer holds only finite numbers. Any other answer is not sent.
#pragma once

#include "protocol/bytes.h"
#include "protocol/tensor_format.h"

namespace moex {

// Returns true if every value of the wire rows is finite. For int8 only the scales are checked,
// since codes are always finite.
bool wire_rows_finite(Dtype dtype, ByteView bytes, std::uint64_t num_rows, std::uint32_t row_size);

}  // namespace moex
