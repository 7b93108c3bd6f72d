#include "protocol/half_rows.h"

#include <cstring>

#include "protocol/half.h"

#if defined(__x86_64__) && !defined(__EMSCRIPTEN__)
#define MOEX_F16C 1
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace moex {
namespace {

half load_half(const std::byte* from) {
    half value;
    std::memcpy(&value, from, sizeof value);
    return value;
}
bool is_finite(float value) { return (detail::bits_of_float(value) & 0x7f800000u) != 0x7f800000u; }

#ifdef MOEX_F16C
// Query CPUID directly, because __builtin_cpu_supports() of clang 14 has no name for the feature
// F16C.
bool cpu_has_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
           (c & bit_F16C) != 0;
}
const bool has_f16c = cpu_has_f16c();

#define MOEX_TARGET_F16C __attribute__((target("avx2,f16c")))

MOEX_TARGET_F16C std::size_t halves_of_floats_wide(const float* values, std::size_t count,
                                                   std::byte* halves) {
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(halves + 2 * i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}
// Converts f16 values, eight at a time, with F16C instructions, and returns how many it converted.
// Sets `finite` to false when one of these values is not finite.
MOEX_TARGET_F16C std::size_t floats_of_halves_wide(const std::byte* halves, std::size_t count,
                                                   float* values, bool& finite) {
    const __m128i exponent = _mm_set1_epi16(0x7c00);
    __m128i broken = _mm_setzero_si128();
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + 2 * i));
        broken = _mm_or_si128(broken, _mm_cmpeq_epi16(_mm_and_si128(eight, exponent), exponent));
        _mm256_storeu_ps(values + i, _mm256_cvtph_ps(eight));
    }
    if (_mm_testz_si128(broken, broken) == 0) finite = false;
    return i;
}
MOEX_TARGET_F16C std::size_t round_to_half_wide(float* values, std::size_t count) {
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(values + i),
                                                                     _MM_FROUND_TO_NEAREST_INT)));
    return i;
}
#endif

}  // namespace

void halves_of_floats(const float* values, std::size_t count, std::byte* halves) {
    std::size_t i = 0;
#ifdef MOEX_F16C
    if (has_f16c) i = halves_of_floats_wide(values, count, halves);
#endif
    for (; i < count; ++i) {
        const half value = float_to_half(values[i]);
        std::memcpy(halves + 2 * i, &value, sizeof value);
    }
}

bool floats_of_halves(const std::byte* halves, std::size_t count, float* values) {
    bool finite = true;
    std::size_t i = 0;
#ifdef MOEX_F16C
    if (has_f16c) i = floats_of_halves_wide(halves, count, values, finite);
#endif
    for (; i < count; ++i) {
        values[i] = half_to_float(load_half(halves + 2 * i));
        finite = finite && is_finite(values[i]);
    }
    return finite;
}

void round_to_half(float* values, std::size_t count) {
    std::size_t i = 0;
#ifdef MOEX_F16C
    if (has_f16c) i = round_to_half_wide(values, count);
#endif
    for (; i < count; ++i) values[i] = half_to_float(float_to_half(values[i]));
}

}  // namespace moex
