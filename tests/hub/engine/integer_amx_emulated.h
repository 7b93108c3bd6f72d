// The AMX path on a machine without tiles: integer_amx.cpp as it is, over tiles in plain loops. It
// wants AVX512-VNNI beside them, as the path does, and takes tiles wherever it may.
#pragma once

#include "hub/engine/kernels/integer.h"

namespace moex::test {

#if defined(__x86_64__)
const IntegerPath& amx_emulated();
#endif

}  // namespace moex::test
