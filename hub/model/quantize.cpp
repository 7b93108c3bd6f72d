#include "hub/model/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "protocol/check.h"
#include "protocol/tensor_format.h"

namespace moex {
namespace {

// Four lanes everywhere: sums are added in the same order on every machine, whatever the width of its registers.
constexpr int lanes = 4;
using Floats = float __attribute__((vector_size(lanes * sizeof(float))));
using Ints = std::int32_t __attribute__((vector_size(lanes * sizeof(std::int32_t))));
constexpr float half_max = 65504.0f;

struct ScaleZero {
    float scale = int4_scale_min, zero = 0;
};

// What f16 makes of it. Zeros stay near the codes, because kernels subtract zero · Σx and a far zero would cancel badly.
ScaleZero stored(ScaleZero wanted) {
    const float scale = std::min(std::max(wanted.scale, int4_scale_min), half_max);
    const float zero = std::min(std::max(wanted.zero, -16.0f), 31.0f);
    return {half_to_float(float_to_half(scale)), half_to_float(float_to_half(zero))};
}

// Where the search begins: shares of the full range; and how often each is fitted anew.
constexpr float search_shares[] = {1.0f, 0.88f};
constexpr int search_steps = 4;

// How well (scale, zero) does for a group, and the sums that the least-squares line needs.
struct Fit {
    float squared_error = 0;
    float sum_q = 0, sum_qq = 0, sum_qw = 0;
};

inline float lane_sum(Floats v) { return (v[0] + v[1]) + (v[2] + v[3]); }

// The nearest code of each weight, 0..15.
inline Ints nearest_codes(Floats w, float inverse, float zero) {
    Floats t = w * inverse + (zero + 0.5f);
    t = t > 0.0f ? t : Floats{};
    t = t < 15.5f ? t : Floats{} + 15.5f;
    return __builtin_convertvector(t, Ints);  // cuts off the fraction
}

template <int G>
Fit judge(const Floats* w, ScaleZero sz) {
    const float inverse = 1.0f / sz.scale;
    Floats error{}, sum_q{}, sum_qq{}, sum_qw{};
    for (int i = 0; i < G / lanes; ++i) {
        const Floats code = __builtin_convertvector(nearest_codes(w[i], inverse, sz.zero), Floats);
        const Floats off = (code - sz.zero) * sz.scale - w[i];
        error += off * off;
        sum_q += code;
        sum_qq += code * code;
        sum_qw += code * w[i];
    }
    return {lane_sum(error), lane_sum(sum_q), lane_sum(sum_qq), lane_sum(sum_qw)};
}

// The line through (code, weight) with the least squares.
template <int G>
bool refit(const Fit& fit, float sum_w, ScaleZero& sz) {
    const float spread = G * fit.sum_qq - fit.sum_q * fit.sum_q;
    if (!(spread > 0)) return false;
    const float slope = (G * fit.sum_qw - fit.sum_q * sum_w) / spread;
    if (!(slope >= int4_scale_min)) return false;
    const float intercept = (sum_w - slope * fit.sum_q) / G;
    const ScaleZero before = sz;
    sz = stored({slope, -intercept / slope});
    return sz.scale != before.scale || sz.zero != before.zero;
}

template <int G>
bool quantize_group(const float* weights, std::uint32_t* codes, std::uint32_t* scale_zero, Int4Search search) {
    Floats w[G / lanes];
    std::memcpy(w, weights, sizeof w);
    // Zero belongs to the range, so that code − zero never cancels far from it.
    Floats low_lane{}, high_lane{}, sum_lane{};
    for (const Floats& value : w) {
        low_lane = value < low_lane ? value : low_lane;
        high_lane = value > high_lane ? value : high_lane;
        sum_lane += value;
    }
    float low = 0, high = 0;
    for (int k = 0; k < lanes; ++k) {
        low = std::min(low, low_lane[k]);
        high = std::max(high, high_lane[k]);
    }
    const float full = (high - low) / 15.0f;
    if (!(full <= half_max)) return false;
    ScaleZero best = full > 0 ? stored({full, -low / full}) : ScaleZero{};
    if (search == Int4Search::best && full > int4_scale_min) {
        const float sum_w = lane_sum(sum_lane);
        float best_error = INFINITY;
        for (const float share : search_shares) {
            ScaleZero candidate = stored({full * share, -low / full});
            for (int step = 0; step < search_steps; ++step) {
                const Fit fit = judge<G>(w, candidate);
                if (fit.squared_error < best_error) {
                    best_error = fit.squared_error;
                    best = candidate;
                }
                if (!refit<G>(fit, sum_w, candidate)) break;
            }
        }
    }
    const float inverse = 1.0f / best.scale;
    for (int word = 0; word < G / 8; ++word) {
        std::uint32_t packed = 0;
        for (int part = 0; part < 8 / lanes; ++part) {
            const Ints q = nearest_codes(w[word * (8 / lanes) + part], inverse, best.zero);
            for (int k = 0; k < lanes; ++k) packed |= static_cast<std::uint32_t>(q[k]) << (4 * (part * lanes + k));
        }
        codes[word] = packed;
    }
    *scale_zero = pack_scale_zero(float_to_half(best.scale), float_to_half(best.zero));
    return true;
}

template <int G>
bool quantize_row(std::span<const float> row, std::uint32_t* codes, std::uint32_t* scale_zero, Int4Search search) {
    for (std::size_t group = 0; group < row.size() / G; ++group)
        if (!quantize_group<G>(row.data() + group * G, codes + group * (G / 8), scale_zero + group, search)) return false;
    return true;
}

}  // namespace

bool quantize_int4_row(std::span<const float> row, std::uint32_t group_size, std::uint32_t* codes, std::uint32_t* scale_zero, Int4Search search) {
    switch (group_size) {
        case 32: return quantize_row<32>(row, codes, scale_zero, search);
        case 64: return quantize_row<64>(row, codes, scale_zero, search);
        case 128: return quantize_row<128>(row, codes, scale_zero, search);
    }
    MOEX_CHECK(false, text("group size ", group_size));
    return false;
}

}  // namespace moex
