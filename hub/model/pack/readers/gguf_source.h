// Opens a GGUF model as a ModelSource: tensors under the names of transformers, with the rows of
// queries and keys in the order of transformers, the metadata as a config.json, and the tokenizer's
// arrays as a tokenizer.json.
#pragma once

#include <filesystem>
#include <vector>

#include "hub/model/pack/readers/model_source.h"

namespace moex {

// `path` is a GGUF file, the first one if the model is split over several.
Result<ModelSource> open_gguf_source(const std::filesystem::path& path);

// Returns the files with the ending .gguf in a folder that begin a model (a file of a split model
// other than the first does not), sorted by name.
std::vector<std::filesystem::path> gguf_models_in(const std::filesystem::path& directory);

}  // namespace moex
