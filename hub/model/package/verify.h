// Checks a package on disk against its manifest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "protocol/result.h"

namespace moex {

// Checks every hash and every shape in a package, and in its draft head if it has one.
// `progress(done_bytes, total_bytes)` may be empty. The error describes the first mismatch.
Status verify_package(const std::filesystem::path& directory,
                      const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace moex
