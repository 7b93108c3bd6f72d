// Gives a package on disk one of its side files, or another in its place. The model stays as it is;
// the manifest, and with it the package's identity, changes.
#pragma once

#include <filesystem>
#include <span>

#include "hub/model/package/side_file.h"
#include "protocol/result.h"

namespace moex {

// The side file first, the manifest last, each under a temporary name until it is whole. A process
// that ends between the two, where there was another before, leaves a package that is refused for
// its file's size or hash.
Status write_side_file(const std::filesystem::path& package, SideFile file,
                       std::span<const SideTensor> tensors);

}  // namespace moex
