#include "hub/model/package/tensor.h"

#include <cmath>
#include <cstring>

#include "protocol/check.h"
#include "protocol/half.h"
#include "protocol/hub_codes.h"
#include "protocol/tensor_format.h"
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
    if (!is_quantized(tensor.dtype))
        return elements_to_float(
            tensor.dtype, tensor.data.data() + first * tensor_dtype_bytes(tensor.dtype), out);

    const std::uint64_t row_size = tensor.shape.back(), first_row = first / row_size,
                        row_bytes = tensor.dtype == TensorDtype::int8 ? row_size : row_size / 2;
    MOEX_CHECK(first % row_size == 0 && out.size() % row_size == 0,
               text("codes of ", tensor.name, " are read in whole rows of ", row_size));
    dequantize_rows(tensor.dtype, static_cast<std::uint32_t>(row_size), tensor.group_size,
                    tensor.data.data() + first_row * row_bytes,
                    tensor.scales.data() + first_row * (row_size / tensor.group_size) * 4, out);
}

std::uint32_t tensor_dtype_bytes(TensorDtype dtype) {
    return dtype == TensorDtype::f32 ? 4 : is_quantized(dtype) ? 1 : 2;
}

const char* tensor_dtype_name(TensorDtype dtype) {
    switch (dtype) {
        case TensorDtype::f32: return "F32";
        case TensorDtype::f16: return "F16";
        case TensorDtype::bf16: return "BF16";
        case TensorDtype::int8: return "I8";
        case TensorDtype::int4: return "U8";
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

    MOEX_CHECK(!is_quantized(dtype), "codes have no value without their scales");
    for (std::size_t i = 0; i < out.size(); ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, elements + 2 * i, 2);
        out[i] = dtype == TensorDtype::bf16 ? bfloat16_to_float(bits) : half_to_float(bits);
    }
}

void dequantize_rows(TensorDtype dtype, std::uint32_t row_size, std::uint32_t group_size,
                     const std::byte* codes, const std::byte* scales, std::span<float> out) {
    const std::size_t row_bytes = dtype == TensorDtype::int8 ? row_size : row_size / 2,
                      scale_bytes = row_size / group_size * std::size_t{4};
    std::vector<std::uint32_t> words(row_bytes / 4), scale_words(scale_bytes / 4);  // aligned
    for (std::size_t at = 0; at < out.size(); at += row_size) {
        std::memcpy(words.data(), codes, row_bytes);
        std::memcpy(scale_words.data(), scales, scale_bytes);
        if (dtype == TensorDtype::int8)
            dequantize_int8_row(reinterpret_cast<const std::int8_t*>(words.data()),
                                reinterpret_cast<const float*>(scale_words.data()), row_size,
                                group_size, out.data() + at);
        else
            dequantize_int4_row(words.data(), scale_words.data(), row_size, group_size,
                                out.data() + at);
        codes += row_bytes;
        scales += scale_bytes;
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
