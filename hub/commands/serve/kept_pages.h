// Opens the pages of keys and values that `serve` keeps on disk, from the settings and the loaded
// model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "hub/commands/load_model.h"
#include "hub/commands/serve/serve_settings.h"
#include "hub/registry/registry.h"
#include "hub/state/disk_pages.h"

namespace moex {

// Returns the folder of the pages within a state folder.
std::filesystem::path kept_pages_folder(const std::filesystem::path& state_directory);

// Returns how many bytes of pages may be kept: --kv-disk-mb, or its default for this address. Any
// other machine's prompts are kept only if the operator says so.
std::uint64_t kept_bytes_max(const ServeSettings& settings,
                             const std::filesystem::path& state_directory);

struct KeptPagesParts {
    const LoadedModel& model;
    const EngineOptions& engine;
    bool on_gpu = false;
    bool has_whole_pages = false;  // the GPU keeps rows of layers with a window with the others
    Registry& registry;            // outlives the result
};

// Returns what determines the bits of the keys and values that this hub computes.
KvSource source_of_pages(const ServeSettings& settings, const KeptPagesParts& parts);

// Returns the source of the pages that this hub hands off (/v1/prefill). Returns nullopt if it
// hands off none: it gives no model, the model has windows or recurrent states, or pages have
// another size than a part of the stream's.
std::optional<KvSource> handed_source(const ServeSettings& settings, const KeptPagesParts& parts);

// Returns null if nothing is kept. A folder that cannot be used is logged, and nothing is kept.
// Errors: a key that the operator chose cannot be read.
Result<std::unique_ptr<DiskPages>> open_kept_pages(const ServeSettings& settings,
                                                   const std::filesystem::path& state_directory,
                                                   const KeptPagesParts& parts);

}  // namespace moex
