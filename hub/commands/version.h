// The version that CMake's project() names.
#pragma once

namespace moex {
const char* moex_version();
}  // namespace moex
