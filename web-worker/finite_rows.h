// An answer that holds anything but numbers is not sent.
#pragma once

#include "protocol/bytes.h"
#include "protocol/tensor_format.h"

namespace moex {

// Whether every value of wire rows is finite (codes of int8 always are; their scales are checked).
bool wire_rows_finite(Dtype dtype, ByteView bytes, std::uint64_t num_rows, std::uint32_t row_size);

}  // namespace moex
