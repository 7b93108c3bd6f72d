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

// Where a group's scales (and zeros) and its codes begin.
struct GroupPlace {
    const std::byte *scales = nullptr, *codes = nullptr;
};
template <PackedDtype DTYPE>
inline GroupPlace group_place(const PackedMatrix& weights, std::uint32_t panel,
                              std::uint32_t group) {
    const std::byte* begin = weights.panel(panel);
    if constexpr (DTYPE == PackedDtype::int6) {
        const std::byte* block = begin + group / 2 * weights.block_bytes();
        return {block + group % 2 * 32, block + 64 + group % 2 * weights.group_code_bytes()};
    } else {
        const std::byte* block = begin + group * weights.block_bytes();
        return {block, block + 64};
    }
}

}  // namespace moex
