#include "hub/model/pack/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "protocol/check.h"
#include "protocol/tensor_format.h"

namespace moex {
namespace {

constexpr int lanes = 4;
using Floats = float __attribute__((vector_size(lanes * sizeof(float))));
using Ints = std::int32_t __attribute__((vector_size(lanes * sizeof(std::int32_t))));
constexpr float half_max = 65504.0f;

struct ScaleZero {
    float scale = int4_scale_min, zero = 0;
};

// Returns scale and zero as f16 stores them. The zero is clamped to a range near that of the codes.
// Kernels subtract zero · Σx, and a zero far from the codes would cause cancellation.
ScaleZero stored(ScaleZero wanted) {
    const float scale = std::min(std::max(wanted.scale, int4_scale_min), half_max);
    const float zero = std::min(std::max(wanted.zero, -16.0f), 31.0f);
    return {half_to_float(float_to_half(scale)), half_to_float(float_to_half(zero))};
}

// Returns the nearest code, 0..15, for each weight.
inline Ints nearest_codes(Floats w, float inverse, float zero) {
    Floats t = w * inverse + (zero + 0.5f);
    t = t > 0.0f ? t : Floats{};
    t = t < 15.5f ? t : Floats{} + 15.5f;
    return __builtin_convertvector(t, Ints);  // the conversion cuts off the fraction
}

template <int G>
bool quantize_group(const float* weights, std::uint32_t* codes, std::uint32_t* scale_zero) {
    Floats w[G / lanes];
    std::memcpy(w, weights, sizeof w);

    // The quantised range always includes zero, so that code − zero does not suffer from
    // cancellation.
    Floats low_lane{}, high_lane{};
    for (const Floats& value : w) {
        low_lane = value < low_lane ? value : low_lane;
        high_lane = value > high_lane ? value : high_lane;
    }

    float low = 0, high = 0;
    for (int k = 0; k < lanes; ++k) {
        low = std::min(low, low_lane[k]);
        high = std::max(high, high_lane[k]);
    }

    const float full = (high - low) / 15.0f;
    if (!(full <= half_max)) return false;

    ScaleZero sz = full > 0 ? stored({full, -low / full}) : ScaleZero{};
    const float inverse = 1.0f / sz.scale;
    for (int word = 0; word < G / 8; ++word) {
        std::uint32_t packed = 0;
        for (int part = 0; part < 8 / lanes; ++part) {
            const Ints q = nearest_codes(w[word * (8 / lanes) + part], inverse, sz.zero);
            for (int k = 0; k < lanes; ++k)
                packed |= static_cast<std::uint32_t>(q[k]) << (4 * (part * lanes + k));
        }
        codes[word] = packed;
    }

    *scale_zero = pack_scale_zero(float_to_half(sz.scale), float_to_half(sz.zero));
    return true;
}

template <int G>
bool quantize_row(std::span<const float> row, std::uint32_t* codes, std::uint32_t* scale_zero) {
    for (std::size_t group = 0; group < row.size() / G; ++group)
        if (!quantize_group<G>(row.data() + group * G, codes + group * (G / 8), scale_zero + group))
            return false;
    return true;
}

}  // namespace

bool quantize_int4_row(std::span<const float> row, std::uint32_t group_size, std::uint32_t* codes,
                       std::uint32_t* scale_zero) {
    switch (group_size) {
        case 32: return quantize_row<32>(row, codes, scale_zero);
        case 64: return quantize_row<64>(row, codes, scale_zero);
        case 128: return quantize_row<128>(row, codes, scale_zero);
    }
    MOEX_CHECK(false, text("group size ", group_size));
    return false;
}

}  // namespace moex
