// Opens a folder with config.json and safetensors shards as a ModelSource.
#pragma once

#include <filesystem>

#include "hub/model/pack/readers/model_source.h"

namespace moex {

Result<ModelSource> open_safetensors_source(const std::filesystem::path& directory);

}  // namespace moex
