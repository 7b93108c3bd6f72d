// The AMX path for machines without AMX: the unchanged integer_amx.cpp with emulated tile
// instructions. Like the real path it needs AVX512-VNNI. It uses tiles for every product that tiles
// support.
#pragma once

#include "hub/engine/kernels/integer.h"

namespace moex::test {

#if defined(__x86_64__)
const IntegerPath& amx_emulated();
#endif

}  // namespace moex::test
