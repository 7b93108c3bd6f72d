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

enum class TensorDtype { f32, f16, bf16 };
// One tensor of hub.safetensors, borrowed from its map, at a multiple of its element's size.
struct TensorView {
    std::string name;
    TensorDtype dtype = TensorDtype::f32;
    std::vector<std::uint64_t> shape;
    ByteView data;
    std::uint64_t num_elements() const;
};
// Copies elements [first, first + out.size()) as f32.
void tensor_to_float(const TensorView& tensor, std::uint64_t first, std::span<float> out);

std::uint32_t tensor_dtype_bytes(TensorDtype dtype);
const char* tensor_dtype_name(TensorDtype dtype);              // "BF16", as in the header
std::string shape_text(std::span<const std::uint64_t> shape);  // "[64, 2048]"

// Elements as they lie in a file (any alignment) to f32.
void elements_to_float(TensorDtype dtype, const std::byte* elements, std::span<float> out);
// Index of the first NaN or infinity.
std::optional<std::size_t> find_non_finite(std::span<const float> values);

}  // namespace moex
