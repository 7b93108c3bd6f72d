// The paths of integer.h, one for each instruction set. Each path has its own source file, which is
// compiled for that instruction set alone.
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
// Returns true if AMX can be used. Requests the tile registers from the operating system, once per
// process: without the system's permission the first tile instruction would end the process.
// Source: Linux, Documentation/arch/x86/xstate.rst.
bool integer_amx_supported();
#endif

#if defined(__wasm_simd128__)
const IntegerPath& integer_wasm();
#endif

// Returns how many outputs the matrix has in `panel`; fewer than 16 only in the last panel.
inline std::uint32_t panel_width(const PackedMatrix& weights, std::uint32_t panel) {
    const std::uint32_t left = weights.num_out - panel * panel_outs;
    return left < panel_outs ? left : panel_outs;
}

// The addresses at which a group's scales (and zeros) and the group's codes begin.
struct GroupPlace {
    const std::byte *scales = nullptr, *codes = nullptr;
};
// Finds the scales and codes of each group in a panel.
template <PackedDtype DTYPE>
class PanelGroups {
  public:
    PanelGroups(const PackedMatrix& weights, std::uint32_t panel)
        : panel_(weights.panel(panel)),
          block_bytes_(weights.block_bytes()),
          group_code_bytes_(weights.group_code_bytes()) {}
    GroupPlace operator[](std::uint32_t group) const {
        if constexpr (DTYPE == PackedDtype::int6) {
            const std::byte* block = panel_ + group / 2 * block_bytes_;
            return {block + group % 2 * 32, block + 64 + group % 2 * group_code_bytes_};
        } else {
            const std::byte* block = panel_ + group * block_bytes_;
            return {block, block + (DTYPE == PackedDtype::mxfp4 ? 16 : 64)};
        }
    }

  private:
    const std::byte* panel_;
    std::size_t block_bytes_, group_code_bytes_;
};

}  // namespace moex
