#include "hub/model/package/shadow_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "protocol/half.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr const char* names[] = {"int2", "int3", "nf4", "int8"};
constexpr float half_max = 65504.0f;

float as_half(float value) { return half_to_float(float_to_half(value)); }

void put_half(std::span<std::byte> row, std::uint64_t at, float value) {
    const half stored = float_to_half(value);
    std::memcpy(row.data() + at, &stored, sizeof stored);
}
float half_at(ByteView row, std::uint64_t at) {
    half stored;
    std::memcpy(&stored, row.data() + at, sizeof stored);
    return half_to_float(stored);
}

// Returns the scale of a group whose codes are symmetric around zero: the largest magnitude of a
// weight divided by the largest code.
float symmetric_scale(std::span<const float> weights, float code_max) {
    float largest = 0;
    for (const float w : weights) largest = std::max(largest, std::fabs(w));
    return std::max(as_half(std::min(largest / code_max, half_max)), shadow_scale_min);
}

ShadowScale ranged_scale(std::span<const float> weights, std::uint32_t num_codes,
                         std::uint32_t source_codes) {
    const auto [low, high] = std::minmax_element(weights.begin(), weights.end());
    const float from = std::min(*low, 0.0f), to = std::max(*high, 0.0f),
                margin = source_codes > 1 ? (to - from) / static_cast<float>(2 * (source_codes - 1))
                                          : 0.0f;
    const float full = (to - from + 2 * margin) / static_cast<float>(num_codes);
    if (!(full > 0)) return {shadow_scale_min, 0};

    const float scale = std::max(std::min(full, half_max), shadow_scale_min);
    return {as_half(scale), as_half((margin - from) / scale - 0.5f)};
}

std::uint8_t nearest_level(float value) {
    const auto* const above = std::lower_bound(std::begin(nf4_levels), std::end(nf4_levels), value);
    if (above == std::begin(nf4_levels)) return 0;
    if (above == std::end(nf4_levels)) return 15;
    const auto index = static_cast<std::uint8_t>(above - nf4_levels);
    return value - above[-1] < *above - value ? static_cast<std::uint8_t>(index - 1) : index;
}

// Returns the code of the weight `w`. The rounding is half up, as for INT4: floor(x + 1/2).
std::uint8_t code_of(const ShadowRow& shape, float w, ShadowScale by) {
    const float code_max = static_cast<float>((1u << shape.code_bits()) - 1);
    switch (shape.dtype) {
        case ShadowDtype::nf4: return nearest_level(w / by.scale);
        case ShadowDtype::int8: {
            const float code = std::clamp(std::floor(w / by.scale + 0.5f), -127.0f, 127.0f);
            return static_cast<std::uint8_t>(static_cast<std::int8_t>(code));
        }
        default:
            return static_cast<std::uint8_t>(
                std::clamp(std::floor(w / by.scale + by.zero + 0.5f), 0.0f, code_max));
    }
}

float weight_of(const ShadowRow& shape, std::uint8_t code, ShadowScale by) {
    switch (shape.dtype) {
        case ShadowDtype::nf4: return by.scale * nf4_levels[code];
        case ShadowDtype::int8:
            return by.scale * static_cast<float>(static_cast<std::int8_t>(code));
        default: return by.scale * (static_cast<float>(code) - by.zero);
    }
}

}  // namespace

const float nf4_levels[16] = {-1.0f,
                              -0.6961928009986877f,
                              -0.5250730514526367f,
                              -0.39491748809814453f,
                              -0.28444138169288635f,
                              -0.18477343022823334f,
                              -0.09105003625154495f,
                              0.0f,
                              0.07958029955625534f,
                              0.16093020141124725f,
                              0.24611230194568634f,
                              0.33791524171829224f,
                              0.44070982933044434f,
                              0.5626170039176941f,
                              0.7229568362236023f,
                              1.0f};

const char* shadow_dtype_name(ShadowDtype dtype) { return names[static_cast<int>(dtype)]; }

Result<ShadowDtype> parse_shadow_dtype(std::string_view name) {
    for (int i = 0; i < 4; ++i)
        if (name == names[i]) return static_cast<ShadowDtype>(i);
    return Error{ErrorCode::unknown_dtype,
                 text("wanted int2, int3, nf4 or int8, found \"", name, "\"")};
}

std::uint32_t ShadowRow::code_bits() const {
    constexpr std::uint32_t bits[] = {2, 3, 4, 8};
    return bits[static_cast<int>(dtype)];
}

bool quantize_shadow_row(const ShadowRow& shape, std::span<const float> weights,
                         std::uint32_t source_codes, std::span<std::byte> row) {
    const std::uint32_t bits = shape.code_bits(), group_size = shape.group_size;
    std::fill(row.begin(), row.end(), std::byte{0});
    std::uint64_t bit = 0, at = shape.code_bytes();

    for (std::uint32_t group = 0; group < shape.num_groups(); ++group) {
        const auto these = weights.subspan(std::size_t{group} * group_size, group_size);
        for (const float w : these)
            if (!(std::fabs(w) <= half_max)) return false;

        const ShadowScale by = shape.has_zeros()
                                   ? ranged_scale(these, 1u << bits, source_codes)
                                   : ShadowScale{symmetric_scale(
                                         these, shape.dtype == ShadowDtype::nf4 ? 1.0f : 127.0f)};
        for (const float w : these) {
            const unsigned code = code_of(shape, w, by) << (bit % 8);
            row[bit / 8] |= static_cast<std::byte>(code);
            if (bit % 8 + bits > 8) row[bit / 8 + 1] |= static_cast<std::byte>(code >> 8);
            bit += bits;
        }

        put_half(row, at, by.scale);
        at += 2;
        if (!shape.has_zeros()) continue;
        put_half(row, at, by.zero);
        at += 2;
    }
    return true;
}

void unpack_shadow_codes(const ShadowRow& shape, ByteView row, std::span<std::uint8_t> codes) {
    const std::uint32_t bits = shape.code_bits(), mask = (1u << bits) - 1;
    std::uint64_t bit = 0;
    for (std::uint8_t& code : codes) {
        unsigned word = static_cast<unsigned>(row[bit / 8]);
        if (bit % 8 + bits > 8) word |= static_cast<unsigned>(row[bit / 8 + 1]) << 8;
        code = static_cast<std::uint8_t>(word >> (bit % 8) & mask);
        bit += bits;
    }
}

ShadowScale shadow_scale(const ShadowRow& shape, ByteView row, std::uint32_t group) {
    if (!shape.has_zeros()) return {half_at(row, shape.code_bytes() + 2 * group), 0};
    const std::uint64_t at = shape.code_bytes() + 4 * group;
    return {half_at(row, at), half_at(row, at + 2)};
}

void dequantize_shadow_row(const ShadowRow& shape, ByteView row, std::span<float> weights) {
    std::vector<std::uint8_t> codes(shape.row_size);
    unpack_shadow_codes(shape, row, codes);
    for (std::uint32_t i = 0; i < shape.row_size; ++i)
        weights[i] = weight_of(shape, codes[i], shadow_scale(shape, row, i / shape.group_size));
}

}  // namespace moex
