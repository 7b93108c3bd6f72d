// Adds an optional side file to a package on disk, or replaces it. The files of the model stay
// unchanged. The manifest changes, and with it the identity of the package.
#pragma once

#include <filesystem>
#include <span>

#include "hub/model/package/side_file.h"
#include "protocol/result.h"

namespace moex {

// Writes the side file first and the manifest last, each under a temporary name until the file is
// complete. If the process ends between the two writes after it has replaced an older side file,
// later attempts to open the package fail, because size or hash of the side file do not match.
Status write_side_file(const std::filesystem::path& package, SideFile file,
                       std::span<const SideTensor> tensors);

}  // namespace moex
