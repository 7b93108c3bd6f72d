// The AVX512-VNNI path: the instruction dpbusd on vectors of 512 bits, which have a lane for each
// output of a panel.
#include "hub/engine/kernels/integer_paths.h"

#if defined(__x86_64__)
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vnni")
namespace moex {
namespace {

using Whole = __m512i;
using Real = __m512;
constexpr int lanes = 16, parts = 1, tile_rows = 4, tile_panels = 3, vectors_at_once = 3;
constexpr int rows_at_once = 8;

inline Whole load(const std::byte* from) { return _mm512_load_si512(from); }
inline Whole four_codes(const std::int8_t* from) {
    std::int32_t word = 0;
    std::memcpy(&word, from, 4);
    return _mm512_set1_epi32(word);
}
inline Whole whole_zero() { return _mm512_setzero_si512(); }
inline Whole plus_128(Whole codes) { return _mm512_xor_si512(codes, _mm512_set1_epi8(-128)); }
inline Whole low_half(Whole codes) { return _mm512_and_si512(codes, _mm512_set1_epi8(15)); }
inline Whole high_half(Whole codes) { return low_half(_mm512_srli_epi16(codes, 4)); }
inline Whole low_six(Whole codes) { return _mm512_and_si512(codes, _mm512_set1_epi8(63)); }
// Returns the 6-bit codes that are stored in bits 6 and 7 of the bytes of a, b and c (int6 layout
// in integer.h).
inline Whole high_twos(Whole a, Whole b, Whole c) {
    constexpr int first_or_second_in_third = 0xf8;  // truth table of a | (b & c) for vpternlog
    const Whole two = _mm512_and_si512(_mm512_srli_epi16(a, 6), _mm512_set1_epi8(3));
    const Whole four = _mm512_ternarylogic_epi32(two, _mm512_srli_epi16(b, 4), _mm512_set1_epi8(12),
                                                 first_or_second_in_third);
    return _mm512_ternarylogic_epi32(four, _mm512_srli_epi16(c, 2), _mm512_set1_epi8(48),
                                     first_or_second_in_third);
}
inline Whole dot(Whole sum, Whole w, Whole x) { return _mm512_dpbusd_epi32(sum, w, x); }
inline Real to_real(Whole value) { return _mm512_cvtepi32_ps(value); }
inline Whole to_whole(Real value) { return _mm512_cvtps_epi32(value); }
inline Real real(float value) { return _mm512_set1_ps(value); }
inline Real plus(Real a, Real b) { return _mm512_add_ps(a, b); }
inline Real minus(Real a, Real b) { return _mm512_sub_ps(a, b); }
inline Real times(Real a, Real b) { return _mm512_mul_ps(a, b); }
inline Real load_floats(const std::byte* from) { return _mm512_load_ps(from); }
inline Real load_halves(const std::byte* from) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Whole load_anywhere(const std::byte* from) { return _mm512_loadu_si512(from); }
// Returns the codes of mxfp4 as twice their values plus 12.
inline Whole twice_plus_12(Whole codes) {
    const Whole table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm512_shuffle_epi8(table, codes);
}
// Returns 2^(scale - 128) for the scales of mxfp4: four times the scale, which is a normal number,
// divided by eight.
inline Real load_exponents(const std::byte* from) {
    const Whole bytes = _mm512_cvtepu8_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const Whole bits = _mm512_slli_epi32(_mm512_add_epi32(bytes, _mm512_set1_epi32(2)), 23);
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.125f));
}
inline void store(float* to, Real value) { _mm512_storeu_ps(to, value); }

#include "hub/engine/kernels/integer_vnni-inl.h"

}  // namespace

const IntegerPath& integer_avx512_vnni() {
    constexpr IntegerProducts products{product<PackedDtype::int8>, product<PackedDtype::int6>,
                                       product<PackedDtype::int4>, product<PackedDtype::mxfp4>};
    static constexpr IntegerPath path{"AVX512-VNNI", products, products};
    return path;
}

}  // namespace moex
HWY_POP_ATTRIBUTES

namespace moex {
bool integer_avx512_vnni_supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vnni");
}
}  // namespace moex
#endif
