// The instruction sets of integer.h; each is a file of its own, compiled for its set alone.
#pragma once

#include "hub/engine/kernels/integer.h"

namespace moex {

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
