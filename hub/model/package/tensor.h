// TensorView: a tensor of a checkpoint or a package, with its element type, its shape and a view of
// its bytes. The functions convert its elements to f32.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/bytes.h"

namespace moex {

// Element types of a tensor. int8 and int4 are the codes of protocol/hub_codes.h. int4 has two
// codes per byte, with the even code in the low half.
enum class TensorDtype { f32, f16, bf16, int8, int4 };
constexpr bool is_quantized(TensorDtype dtype) {
    return dtype == TensorDtype::int8 || dtype == TensorDtype::int4;
}

// A view of one tensor of hub.safetensors, borrowed from the mapped file. The data of a plain
// tensor starts at a multiple of its element size. Codes and their scales start at multiples of 4.
struct TensorView {
    std::string name;
    TensorDtype dtype = TensorDtype::f32;
    std::vector<std::uint64_t> shape;
    ByteView data;
    // scales, for codes only: [num_out, num_in / group_size] as f32, or as f16 pairs of scale and
    // zero
    ByteView scales;
    std::uint32_t group_size = 0;
    std::uint64_t num_elements() const;
};
// Copies elements [first, first + out.size()) of the tensor as f32. If the tensor has codes, the
// range must be whole rows.
void tensor_to_float(const TensorView& tensor, std::uint64_t first, std::span<float> out);

// Returns the size in bytes of an element in a file. For int4 it is the size of a byte, which has
// two codes.
std::uint32_t tensor_dtype_bytes(TensorDtype dtype);
const char* tensor_dtype_name(TensorDtype dtype);  // "BF16" etc., as in a safetensors header
std::string shape_text(std::span<const std::uint64_t> shape);  // "[64, 2048]"

// Converts elements in the form of the file, at any alignment, to f32. For codes use
// dequantize_rows().
void elements_to_float(TensorDtype dtype, const std::byte* elements, std::span<float> out);
// Converts rows of codes, [rows, row_size], to f32. The bytes may have any alignment.
void dequantize_rows(TensorDtype dtype, std::uint32_t row_size, std::uint32_t group_size,
                     const std::byte* codes, const std::byte* scales, std::span<float> out);
// Returns the index of the first value that is NaN or infinite, if there is such a value.
std::optional<std::size_t> find_non_finite(std::span<const float> values);

}  // namespace moex
