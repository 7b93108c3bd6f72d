#include "protocol/hub_codes.h"

#include <algorithm>
#include <cmath>

#include "protocol/tensor_format.h"
#include "protocol/text.h"

namespace moex {
namespace {

// Rounds a float to the nearest whole number, ties to even, for values below 2^22. Unlike
// nearbyint() this needs no function call, so the compiler turns loops into vector code.
inline float nearest(float value) {
    constexpr float ones_from_here = 12582912.0f;  // 1.5 · 2^23
    return (value + ones_from_here) - ones_from_here;
}

}  // namespace

const char* hub_dtype_name(HubDtype dtype) {
    switch (dtype) {
        case HubDtype::bf16: return "bf16";
        case HubDtype::int8: return "int8";
        case HubDtype::int4: return "int4";
    }
    return "?";
}

Result<HubDtype> parse_hub_dtype(std::string_view name) {
    for (const HubDtype dtype : {HubDtype::bf16, HubDtype::int8, HubDtype::int4})
        if (name == hub_dtype_name(dtype)) return dtype;
    return Error{ErrorCode::invalid_argument,
                 text("wanted bf16, int8 or int4, found \"", name, "\"")};
}

std::uint32_t int8_group_size(std::uint32_t num_in) {
    return num_in % 128 == 0 ? 128 : num_in % 64 == 0 ? 64 : 32;
}

float quantize_int8_group(std::span<const float> weights, std::int8_t* codes) {
    float largest = 0;
    for (const float weight : weights) largest = std::max(largest, std::fabs(weight));
    constexpr float smallest = 1e-30f;  // for smaller weights 127 / largest would overflow f32
    const float factor = largest > smallest ? 127.0f / largest : 0.0f;
    for (std::size_t k = 0; k < weights.size(); ++k)
        codes[k] = static_cast<std::int8_t>(
            static_cast<std::int32_t>(nearest(weights[k] * factor)));
    return largest / 127.0f;
}

half quantize_int6_group(std::span<const float> weights, std::int8_t* codes) {
    float largest = 0;
    for (const float weight : weights)
        if (std::fabs(weight) > std::fabs(largest)) largest = weight;
    // The step between two codes must be representable in f16. The step has a sign, because only
    // one side of zero has 32 codes.
    constexpr float step_min = 1e-5f, step_max = 60000.0f;
    const half scale = float_to_half(
        std::copysign(std::clamp(std::fabs(largest) / 32.0f, step_min, step_max), -largest));
    const float step = half_to_float(scale);
    for (std::size_t k = 0; k < weights.size(); ++k)
        codes[k] = static_cast<std::int8_t>(
            static_cast<std::int32_t>(nearest(std::clamp(weights[k] / step, -32.0f, 31.0f))));
    return scale;
}

std::uint32_t quantize_int4_group(std::span<const float> weights, std::uint32_t* codes) {
    const auto [least, most] = std::minmax_element(weights.begin(), weights.end());
    // The step between two codes must be representable in f16. The zero point must be small enough
    // that f16 represents whole numbers of its size.
    constexpr float step_min = 1e-5f, zero_max = 2000.0f;
    const half scale = float_to_half(
        std::max({(*most - *least) / 15.0f, step_min, std::fabs(*least) / zero_max,
                  std::fabs(*most) / zero_max}));
    const float step = half_to_float(scale);
    const half zero = float_to_half(-*least / step);
    const float shift = half_to_float(zero);

    for (std::size_t word = 0; word < weights.size() / 8; ++word) {
        std::uint32_t packed = 0;
        for (std::size_t k = 0; k < 8; ++k) {
            const float code = std::clamp(nearest(weights[word * 8 + k] / step + shift), 0.0f,
                                          15.0f);
            packed |= static_cast<std::uint32_t>(code) << 4 * k;
        }
        codes[word] = packed;
    }
    return pack_scale_zero(scale, zero);
}

void dequantize_int8_row(const std::int8_t* codes, const float* scales, std::uint32_t row_size,
                         std::uint32_t group_size, float* out) {
    for (std::uint32_t first = 0; first < row_size; first += group_size) {
        const float scale = scales[first / group_size];
        const std::uint32_t end = std::min(row_size, first + group_size);
        for (std::uint32_t k = first; k < end; ++k) out[k] = scale * static_cast<float>(codes[k]);
    }
}

}  // namespace moex
