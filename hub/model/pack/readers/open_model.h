// Opens a model of any form that pack reads, and says what a path is that has none.
#pragma once

#include <filesystem>

#include "hub/model/pack/readers/model_source.h"

namespace moex {

// Opens a folder with config.json and safetensors, a GGUF file, or a folder with one GGUF model.
// Errors name the file. A folder that has only .bin files is refused: they are pickles, which run
// code when they are read.
Result<ModelSource> open_model_source(const std::filesystem::path& path);

}  // namespace moex
