// AVX2: products of bytes by maddubs, which adds pairs of products into 16 bits and saturates
// there.
//   int8   |x| · (w with the sign of x): two products of 127 · 127 fit
//   int6   w · x, w plus 32: two pairs of 63 · 127 fit
//   int4   w · x: eight pairs of 15 · 127 fit before they must be added to 32 bits
//   mxfp4  |x| · (w with the sign of x): eight pairs of 12 · 127 fit
#include "hub/engine/kernels/integer_paths.h"

#if defined(__x86_64__)
#include <hwy/base.h>
#include <immintrin.h>

#include <cstring>

HWY_PUSH_ATTRIBUTES("avx2,f16c")
namespace moex {
namespace {

// A row of quantised activations x, in the form in which a tile reads it.
struct Row {
    const std::int8_t* codes = nullptr;
    const float *scales = nullptr, *sums = nullptr;
};

inline __m256i load(const std::byte* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}
// Loads four neighbouring codes of x and copies them to all outputs' lanes.
inline __m256i four_codes(const std::int8_t* from) {
    std::int32_t word = 0;
    std::memcpy(&word, from, 4);
    return _mm256_set1_epi32(word);
}

// Computes the integer sums of one int8 group: sums[row][half of the panel], with 8 outputs in each
// half.
template <int ROWS>
inline void sum_int8(__m256i (&sums)[ROWS][2], const std::byte* codes, const Row (&x)[ROWS],
                     std::size_t first, std::uint32_t group_size) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (std::uint32_t k = 0; k < group_size; k += 4, codes += 64) {
        if constexpr (ROWS == 1)
            _mm_prefetch(reinterpret_cast<const char*>(codes) + 2048, _MM_HINT_T0);
        const __m256i w[2] = {load(codes), load(codes + 32)};
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) {
            const __m256i v = four_codes(x[r].codes + first + k), size = _mm256_abs_epi8(v);
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(w[i], v));
                sums[r][i] = _mm256_add_epi32(sums[r][i], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
}

// Returns the 6-bit codes that are stored in bits 6 and 7 of the bytes of a, b and c (int6 layout
// in integer.h).
inline __m256i high_twos(__m256i a, __m256i b, __m256i c) {
    const __m256i two = _mm256_and_si256(_mm256_srli_epi16(a, 6), _mm256_set1_epi8(3)),
                  four = _mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(12)),
                  six = _mm256_and_si256(_mm256_srli_epi16(c, 2), _mm256_set1_epi8(48));
    return _mm256_or_si256(_mm256_or_si256(two, four), six);
}

template <int ROWS>
inline void sum_int6(__m256i (&sums)[ROWS][2], const std::byte* codes, const Row (&x)[ROWS],
                     std::size_t first, std::uint32_t group_size) {
    const __m256i ones = _mm256_set1_epi16(1), low_six = _mm256_set1_epi8(63);
    for (std::uint32_t k = 0; k < group_size; k += 16, codes += 192) {
        if constexpr (ROWS == 1)
            for (int b = 0; b < 3; ++b)
                _mm_prefetch(reinterpret_cast<const char*>(codes) + 2048 + b * 64, _MM_HINT_T0);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            const __m256i a = load(codes + i * 32), b = load(codes + i * 32 + 64),
                          c = load(codes + i * 32 + 128);
            const __m256i w[4] = {_mm256_and_si256(a, low_six), _mm256_and_si256(b, low_six),
                                  _mm256_and_si256(c, low_six), high_twos(a, b, c)};
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
                for (int j = 0; j < 4; j += 2) {
                    const std::int8_t* at = x[r].codes + first + k + 4 * j;
                    const __m256i pairs = _mm256_add_epi16(
                        _mm256_maddubs_epi16(w[j], four_codes(at)),
                        _mm256_maddubs_epi16(w[j + 1], four_codes(at + 4)));
                    sums[r][i] = _mm256_add_epi32(sums[r][i], _mm256_madd_epi16(pairs, ones));
                }
        }
    }
}

template <int ROWS>
inline void sum_int4(__m256i (&sums)[ROWS][2], const std::byte* codes, const Row (&x)[ROWS],
                     std::size_t first, std::uint32_t group_size) {
    const __m256i ones = _mm256_set1_epi16(1), low_half = _mm256_set1_epi8(15);
    for (std::uint32_t k = 0; k < group_size; k += 32) {
        __m256i pairs[ROWS][2];
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) pairs[r][0] = pairs[r][1] = _mm256_setzero_si256();

        for (std::uint32_t j = k; j < k + 32; j += 8, codes += 64) {
            if constexpr (ROWS == 1)
                _mm_prefetch(reinterpret_cast<const char*>(codes) + 1024, _MM_HINT_T0);
            const __m256i both[2] = {load(codes), load(codes + 32)};
            __m256i low[2], high[2];
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                low[i] = _mm256_and_si256(both[i], low_half);
                high[i] = _mm256_and_si256(_mm256_srli_epi16(both[i], 4), low_half);
            }
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r) {
                const __m256i a = four_codes(x[r].codes + first + j),
                              b = four_codes(x[r].codes + first + j + 4);
#pragma GCC unroll 2
                for (int i = 0; i < 2; ++i) {
                    pairs[r][i] = _mm256_add_epi16(pairs[r][i], _mm256_maddubs_epi16(low[i], a));
                    pairs[r][i] = _mm256_add_epi16(pairs[r][i], _mm256_maddubs_epi16(high[i], b));
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i)
                sums[r][i] = _mm256_add_epi32(sums[r][i], _mm256_madd_epi16(pairs[r][i], ones));
    }
}

template <int ROWS>
inline void sum_mxfp4(__m256i (&sums)[ROWS][2], const std::byte* codes, const Row (&x)[ROWS],
                      std::size_t first) {
    const __m256i ones = _mm256_set1_epi16(1), low_half = _mm256_set1_epi8(15),
                  twice = _mm256_broadcastsi128_si256(
                      _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    __m256i pairs[ROWS][2];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) pairs[r][0] = pairs[r][1] = _mm256_setzero_si256();

    for (std::uint32_t j = 0; j < 32; j += 8, codes += 64) {
        if constexpr (ROWS == 1)
            _mm_prefetch(reinterpret_cast<const char*>(codes) + 1024, _MM_HINT_T0);
        __m256i low[2], high[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            const __m256i both = _mm256_loadu_si256(
                reinterpret_cast<const __m256i*>(codes + i * 32));
            low[i] = _mm256_shuffle_epi8(twice, _mm256_and_si256(both, low_half));
            high[i] = _mm256_shuffle_epi8(twice,
                                          _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half));
        }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) {
            const __m256i a = four_codes(x[r].codes + first + j),
                          b = four_codes(x[r].codes + first + j + 4);
            const __m256i size_a = _mm256_abs_epi8(a), size_b = _mm256_abs_epi8(b);
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                pairs[r][i] = _mm256_add_epi16(
                    pairs[r][i], _mm256_maddubs_epi16(size_a, _mm256_sign_epi8(low[i], a)));
                pairs[r][i] = _mm256_add_epi16(
                    pairs[r][i], _mm256_maddubs_epi16(size_b, _mm256_sign_epi8(high[i], b)));
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
            sums[r][i] = _mm256_add_epi32(sums[r][i], _mm256_madd_epi16(pairs[r][i], ones));
}

// Returns 2^(scale - 128) for eight scales of mxfp4: four times the scale, which is a normal
// number, divided by eight.
inline __m256 load_exponents(const std::byte* from) {
    const __m256i bytes = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(bytes, _mm256_set1_epi32(2)), 23);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.125f));
}

// Returns one group's scaled sums, which are to be added to the totals of the eight outputs in half
// i of the panel.
template <PackedDtype DTYPE>
inline __m256 group_part(const std::byte* scales, int i, __m256i sums, float x_scale, float x_sum) {
    const __m256 whole = _mm256_cvtepi32_ps(sums);
    if constexpr (DTYPE == PackedDtype::int8) {
        const __m256 scale = _mm256_load_ps(reinterpret_cast<const float*>(scales) + i * 8);
        return _mm256_mul_ps(_mm256_mul_ps(scale, _mm256_set1_ps(x_scale)), whole);
    } else if constexpr (DTYPE == PackedDtype::mxfp4) {
        const __m256 scale = load_exponents(scales + i * 8);
        return _mm256_mul_ps(_mm256_mul_ps(scale, _mm256_set1_ps(x_scale)), whole);
    } else {
        const auto* halves = reinterpret_cast<const __m128i*>(scales);
        const __m256 scale = _mm256_cvtph_ps(_mm_load_si128(halves + i)),
                     zero = DTYPE == PackedDtype::int6
                                ? _mm256_set1_ps(32)
                                : _mm256_cvtph_ps(_mm_load_si128(halves + 2 + i));
        const __m256 centred = _mm256_sub_ps(whole, _mm256_mul_ps(zero, _mm256_set1_ps(x_sum)));
        return _mm256_mul_ps(_mm256_mul_ps(scale, _mm256_set1_ps(x_scale)), centred);
    }
}

// Computes the products of ROWS rows with the outputs of one panel.
template <PackedDtype DTYPE, int ROWS>
void tile(float* out, std::size_t out_stride, const PackedMatrix& weights,
          const QuantizedRows& rows, std::uint32_t first_row, std::uint32_t panel) {
    Row x[ROWS];
    __m256 totals[ROWS][2];
    for (int r = 0; r < ROWS; ++r) {
        const std::uint32_t row = first_row + static_cast<std::uint32_t>(r);
        x[r] = {rows.row_codes(row), rows.row_scales(row), rows.row_sums(row)};
        totals[r][0] = totals[r][1] = _mm256_setzero_ps();
    }

    const PanelGroups<DTYPE> groups(weights, panel);
    for (std::uint32_t group = 0; group < rows.num_groups; ++group) {
        const GroupPlace at = groups[group];
        __m256i sums[ROWS][2];
        for (int r = 0; r < ROWS; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
        const std::size_t first = std::size_t{group} * rows.group_size;
        if constexpr (DTYPE == PackedDtype::int8)
            sum_int8<ROWS>(sums, at.codes, x, first, rows.group_size);
        else if constexpr (DTYPE == PackedDtype::int6)
            sum_int6<ROWS>(sums, at.codes, x, first, rows.group_size);
        else if constexpr (DTYPE == PackedDtype::mxfp4)
            sum_mxfp4<ROWS>(sums, at.codes, x, first);
        else
            sum_int4<ROWS>(sums, at.codes, x, first, rows.group_size);

#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i)
                totals[r][i] = _mm256_add_ps(
                    totals[r][i], group_part<DTYPE>(at.scales, i, sums[r][i], x[r].scales[group],
                                                    x[r].sums[group]));
    }

    const std::uint32_t width = panel_width(weights, panel);
    for (int r = 0; r < ROWS; ++r) {
        alignas(32) float line[panel_outs];
        _mm256_store_ps(line, totals[r][0]);
        _mm256_store_ps(line + 8, totals[r][1]);
        std::memcpy(out + static_cast<std::size_t>(r) * out_stride, line, width * sizeof(float));
    }
}

template <PackedDtype DTYPE>
void product(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
             std::uint32_t panel_begin, std::uint32_t panel_end) {
    for (std::uint32_t panel = panel_begin; panel < panel_end; ++panel) {
        const auto at = [&](std::uint32_t r) {
            return out.data + r * out.stride + std::size_t{panel} * panel_outs;
        };
        std::uint32_t r = 0;
        for (; r + 4 <= x.num_rows; r += 4) tile<DTYPE, 4>(at(r), out.stride, weights, x, r, panel);
        for (; r + 2 <= x.num_rows; r += 2) tile<DTYPE, 2>(at(r), out.stride, weights, x, r, panel);
        if (r < x.num_rows) tile<DTYPE, 1>(at(r), out.stride, weights, x, r, panel);
    }
}

}  // namespace

const IntegerPath& integer_avx2() {
    constexpr IntegerProducts products{product<PackedDtype::int8>, product<PackedDtype::int6>,
                                       product<PackedDtype::int4>, product<PackedDtype::mxfp4>};
    static constexpr IntegerPath path{"AVX2", products, products};
    return path;
}

}  // namespace moex
HWY_POP_ATTRIBUTES

namespace moex {
bool integer_avx2_supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}
}  // namespace moex
#endif
