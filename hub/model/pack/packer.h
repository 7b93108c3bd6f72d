// `moex-hub pack` converts a Hugging Face checkpoint to a package. It streams the weights, with one
// layer in memory at a time. It can resume after an interruption: finished layers are recorded in
// OUT/.pack-state and not packed again. The manifest is written last, so an incomplete package
// never opens.
#pragma once

#include <filesystem>
#include <functional>

#include "hub/base/thread_pool.h"
#include "hub/model/pack/pack_options.h"
#include "protocol/result.h"

namespace moex {

// Called by the packer as it goes on, for a caller that packs files while they arrive. Empty
// functions are not called. Layers that an earlier call has finished are left out.
struct PackSteps {
    std::function<Status(std::uint32_t layer)> before_layer;  // before its experts are read
    // after its experts were read and their blobs are on disk
    std::function<Status(std::uint32_t layer)> after_layer;
    std::function<Status()> before_hub;  // before the hub's tensors are read
};

// Packs `checkpoint` into `out`. Calls `progress` after every expert, from any compute thread, one
// call at a time. If the input is bad, the packer removes the files that it has written. A full
// disk or a killed process leaves them, and the same call then resumes.
Result<PackReport> pack_checkpoint(const std::filesystem::path& checkpoint,
                                   const std::filesystem::path& out, const PackOptions& options,
                                   ThreadPool& threads,
                                   const std::function<void(const PackProgress&)>& progress,
                                   const PackSteps& steps = {});

}  // namespace moex
