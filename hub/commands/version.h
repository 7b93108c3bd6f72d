// The version of moex-hub, which project() of CMakeLists.txt defines.
#pragma once

namespace moex {
const char* moex_version();
}  // namespace moex
