// The folder of pulled checkpoints and of packages made from them, which `pull` fills, `models`
// lists and `rm` empties:
//   MODELS/Qwen/Qwen3-30B-A3B          a checkpoint, named by its repository
//   MODELS/Qwen/Qwen3-30B-A3B.moex     the package that `pull --pack` made from it
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hub/options/options.h"

namespace moex {

// Returns the folder of --models-dir; by default $XDG_DATA_HOME/moex/models or
// ~/.local/share/moex/models.
std::filesystem::path models_folder(const Settings& settings);

enum class StoredKind { checkpoint, unfinished_checkpoint, package, unfinished_package };
const char* stored_kind_name(StoredKind kind);  // "unfinished checkpoint"

struct StoredModel {
    std::string name;  // path below the models folder, "Qwen/Qwen3-30B-A3B"
    StoredKind kind = StoredKind::checkpoint;
    std::filesystem::path path;
    std::uint64_t size_bytes = 0;  // bytes that the model occupies on disk
    std::string commit;            // commit of a pulled checkpoint; empty: not known
};

// Finds the models in `folder`, sorted by name. Links are not followed. A folder that does not
// exist holds no models.
std::vector<StoredModel> find_models(const std::filesystem::path& folder);

}  // namespace moex
