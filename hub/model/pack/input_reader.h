// Opens a model for `pack`: finds all tensors that the family needs, checks their shapes, and
// chooses the form of every matrix in the package.
#pragma once

#include <filesystem>

#include "hub/model/pack/pack_input.h"

namespace moex {

// Opens the model at `path`: a folder, or a GGUF file. Reads no weights. Errors name file and
// tensor, what was found and what was wanted.
Result<PackInput> read_pack_input(const std::filesystem::path& path, const PackOptions& options);

}  // namespace moex
