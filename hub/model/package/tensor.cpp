#include "hub/model/package/tensor.h"

#include <cmath>
#include <cstring>

#include "protocol/check.h"
#include "protocol/half.h"
#include "protocol/text.h"

namespace moex {

std::uint64_t TensorView::num_elements() const {
    std::uint64_t count = 1;
    for (const std::uint64_t size : shape) count *= size;
    return count;
}

void tensor_to_float(const TensorView& tensor, std::uint64_t first, std::span<float> out) {
    const std::uint64_t count = tensor.num_elements();
    MOEX_CHECK(
        first <= count && out.size() <= count - first,
        text("elements ", first, "+", out.size(), " of ", tensor.name, ", which has ", count));
    elements_to_float(tensor.dtype, tensor.data.data() + first * tensor_dtype_bytes(tensor.dtype),
                      out);
}

std::uint32_t tensor_dtype_bytes(TensorDtype dtype) { return dtype == TensorDtype::f32 ? 4 : 2; }

const char* tensor_dtype_name(TensorDtype dtype) {
    switch (dtype) {
        case TensorDtype::f32: return "F32";
        case TensorDtype::f16: return "F16";
        case TensorDtype::bf16: return "BF16";
    }
    return "?";
}

std::string shape_text(std::span<const std::uint64_t> shape) {
    std::string out = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) out += text(i == 0 ? "" : ", ", shape[i]);
    return out + "]";
}

void elements_to_float(TensorDtype dtype, const std::byte* elements, std::span<float> out) {
    if (dtype == TensorDtype::f32) {
        if (!out.empty()) std::memcpy(out.data(), elements, out.size_bytes());
        return;
    }

    for (std::size_t i = 0; i < out.size(); ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, elements + 2 * i, 2);
        out[i] = dtype == TensorDtype::bf16 ? bfloat16_to_float(bits) : half_to_float(bits);
    }
}

std::optional<std::size_t> find_non_finite(std::span<const float> values) {
    std::uint32_t any = 0;
    for (const float value : values) {
        const std::uint32_t exponent = detail::bits_of_float(value) & 0x7f800000u;
        any |= exponent == 0x7f800000u ? 1u : 0u;
    }

    if (any == 0) return std::nullopt;
    for (std::size_t i = 0; i < values.size(); ++i)
        if (!std::isfinite(values[i])) return i;
    return std::nullopt;
}

}  // namespace moex
