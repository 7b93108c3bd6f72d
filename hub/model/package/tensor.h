// A tensor of a checkpoint or a package: its element type, its shape, a view of its bytes, and its
// elements as f32.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/bytes.h"

namespace moex {

// int8, int4: codes of protocol/hub_codes.h; int4 lies two to a byte, the even one in its low half.
enum class TensorDtype { f32, f16, bf16, int8, int4 };
constexpr bool is_quantized(TensorDtype dtype) {
    return dtype == TensorDtype::int8 || dtype == TensorDtype::int4;
}

// One tensor of hub.safetensors, borrowed from its map, at a multiple of its element's size; codes
// and what turns them into weights, at multiples of 4.
struct TensorView {
    std::string name;
    TensorDtype dtype = TensorDtype::f32;
    std::vector<std::uint64_t> shape;
    ByteView data;
    // Of codes: [num_out, num_in / group_size] f32 scales, or f16 pairs of scale and zero.
    ByteView scales;
    std::uint32_t group_size = 0;
    std::uint64_t num_elements() const;
};
// Copies elements [first, first + out.size()) as f32; of codes whole rows.
void tensor_to_float(const TensorView& tensor, std::uint64_t first, std::span<float> out);

// Of one element in a file; int4: of a byte with two codes.
std::uint32_t tensor_dtype_bytes(TensorDtype dtype);
const char* tensor_dtype_name(TensorDtype dtype);              // "BF16", as in the header
std::string shape_text(std::span<const std::uint64_t> shape);  // "[64, 2048]"

// Elements as they lie in a file (any alignment) to f32; codes are dequantize_rows()'.
void elements_to_float(TensorDtype dtype, const std::byte* elements, std::span<float> out);
// Rows of codes, [rows, row_size], to f32. Any alignment.
void dequantize_rows(TensorDtype dtype, std::uint32_t row_size, std::uint32_t group_size,
                     const std::byte* codes, const std::byte* scales, std::span<float> out);
// Index of the first NaN or infinity.
std::optional<std::size_t> find_non_finite(std::span<const float> values);

}  // namespace moex
