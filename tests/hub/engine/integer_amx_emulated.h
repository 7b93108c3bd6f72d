// The AMX path on a machine without tiles: the unchanged integer_amx.cpp, over tiles in plain
// loops. Like the path itself it needs AVX512-VNNI, and it uses tiles wherever it may.
#pragma once

#include "hub/engine/kernels/integer.h"

namespace moex::test {

#if defined(__x86_64__)
const IntegerPath& amx_emulated();
#endif

}  // namespace moex::test
