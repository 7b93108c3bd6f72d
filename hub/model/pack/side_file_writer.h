// Adds a side file to a package on disk, or replaces it. The model files stay unchanged. The
// manifest changes, and with it the identity of the package.
#pragma once

#include <filesystem>
#include <span>

#include "hub/model/package/side_file.h"
#include "protocol/result.h"

namespace moex {

// Writes the side file first and the manifest last, each under a temporary name until it is
// complete. If the process ends between the two writes and replaced an older side file, the package
// is refused later, because size or hash of the file do not match.
Status write_side_file(const std::filesystem::path& package, SideFile file,
                       std::span<const SideTensor> tensors);

}  // namespace moex
