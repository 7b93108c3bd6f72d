// The AVX-VNNI path: the instruction dpbusd on vectors of 256 bits.
#include "hub/engine/kernels/integer_paths.h"

#if defined(__x86_64__)
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

HWY_PUSH_ATTRIBUTES("avx2,f16c,avxvnni")
namespace moex {
namespace {

using Whole = __m256i;
using Real = __m256;
constexpr int lanes = 8, parts = 2, tile_rows = 4, tile_panels = 1, vectors_at_once = 2;
constexpr int rows_at_once = tile_rows;

inline Whole load(const std::byte* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}
inline Whole four_codes(const std::int8_t* from) {
    std::int32_t word = 0;
    std::memcpy(&word, from, 4);
    return _mm256_set1_epi32(word);
}
inline Whole whole_zero() { return _mm256_setzero_si256(); }
inline Whole plus_128(Whole codes) { return _mm256_xor_si256(codes, _mm256_set1_epi8(-128)); }
inline Whole low_half(Whole codes) { return _mm256_and_si256(codes, _mm256_set1_epi8(15)); }
inline Whole high_half(Whole codes) { return low_half(_mm256_srli_epi16(codes, 4)); }
inline Whole low_six(Whole codes) { return _mm256_and_si256(codes, _mm256_set1_epi8(63)); }
// Returns the 6-bit codes that are stored in bits 6 and 7 of the bytes of a, b and c (int6 layout
// in integer.h).
inline Whole high_twos(Whole a, Whole b, Whole c) {
    const Whole two = _mm256_and_si256(_mm256_srli_epi16(a, 6), _mm256_set1_epi8(3)),
                four = _mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(12)),
                six = _mm256_and_si256(_mm256_srli_epi16(c, 2), _mm256_set1_epi8(48));
    return _mm256_or_si256(_mm256_or_si256(two, four), six);
}
inline Whole dot(Whole sum, Whole w, Whole x) { return _mm256_dpbusd_avx_epi32(sum, w, x); }
inline Real to_real(Whole value) { return _mm256_cvtepi32_ps(value); }
inline Whole to_whole(Real value) { return _mm256_cvtps_epi32(value); }
inline Real real(float value) { return _mm256_set1_ps(value); }
inline Real plus(Real a, Real b) { return _mm256_add_ps(a, b); }
inline Real minus(Real a, Real b) { return _mm256_sub_ps(a, b); }
inline Real times(Real a, Real b) { return _mm256_mul_ps(a, b); }
inline Real load_floats(const std::byte* from) {
    return _mm256_load_ps(reinterpret_cast<const float*>(from));
}
inline Real load_halves(const std::byte* from) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Whole load_anywhere(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
// Returns the codes of mxfp4 as twice their values plus 12.
inline Whole twice_plus_12(Whole codes) {
    const Whole table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm256_shuffle_epi8(table, codes);
}
// Returns 2^(scale - 128) for the scales of mxfp4: four times the scale, which is a normal number,
// divided by eight.
inline Real load_exponents(const std::byte* from) {
    const Whole bytes = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    const Whole bits = _mm256_slli_epi32(_mm256_add_epi32(bytes, _mm256_set1_epi32(2)), 23);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.125f));
}
inline void store(float* to, Real value) { _mm256_storeu_ps(to, value); }

#include "hub/engine/kernels/integer_vnni-inl.h"

}  // namespace

const IntegerPath& integer_avx_vnni() {
    constexpr IntegerProducts products{product<PackedDtype::int8>, product<PackedDtype::int6>,
                                       product<PackedDtype::int4>, product<PackedDtype::mxfp4>};
    static constexpr IntegerPath path{"AVX-VNNI", products, products};
    return path;
}

}  // namespace moex
HWY_POP_ATTRIBUTES

namespace moex {
bool integer_avx_vnni_supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("avxvnni");
}
}  // namespace moex
#endif
