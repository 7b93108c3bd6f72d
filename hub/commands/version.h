// The version in project() of CMakeLists.txt.
#pragma once

namespace moex {
const char* moex_version();
}  // namespace moex
