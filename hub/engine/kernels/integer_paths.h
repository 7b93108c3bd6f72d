// What the paths of integer.h are made of; each is a file of its own, compiled for its
// instruction set alone.
#pragma once

#include "hub/engine/kernels/integer.h"

namespace moex {

// group_size values of x to codes; the scale and the sum of the codes.
struct QuantizedGroup {
    float scale = 0;
    std::int32_t sum = 0;
};
QuantizedGroup quantize_group(std::int8_t* codes, const float* x, std::uint32_t group_size);
// Its twin in plain loops.
QuantizedGroup quantize_group_plain(std::int8_t* codes, const float* x, std::uint32_t group_size);

const IntegerPath& integer_portable();

#if defined(__x86_64__)
const IntegerPath& integer_avx2();
const IntegerPath& integer_avx_vnni();
const IntegerPath& integer_avx512_vnni();
const IntegerPath& integer_amx();
bool integer_avx2_supported();
bool integer_avx_vnni_supported();
bool integer_avx512_vnni_supported();
// Asks the kernel for the tiles, once per process: without its permission the first tile
// instruction ends the process. Source: Linux, Documentation/arch/x86/xstate.rst.
bool integer_amx_supported();
#endif

#if defined(__wasm_simd128__)
const IntegerPath& integer_wasm();
#endif

// How many outputs of `panel` exist.
inline std::uint32_t panel_width(const PackedMatrix& weights, std::uint32_t panel) {
    const std::uint32_t left = weights.num_out - panel * panel_outs;
    return left < panel_outs ? left : panel_outs;
}

}  // namespace moex
