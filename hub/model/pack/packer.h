// `moex-hub pack` converts a Hugging Face checkpoint to a package. It streams, with one layer in
// memory at a time. It can resume: finished layers are recorded in OUT/.pack-state and not
// repeated. The manifest is written last, so an incomplete package never opens.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/model/config.h"
#include "protocol/hub_codes.h"

namespace moex {

struct PackOptions {
    ExpertDtype expert_dtype = ExpertDtype::int4;
    std::uint32_t group_size_max = 128;
    std::string name;      // default: the checkpoint folder's name
    bool hub_f32 = false;  // keep f32 hub tensors as f32 (goldens); otherwise bf16
    // Format of the hub's matrices: unchanged, or codes. The int8 codes equal those that int8
    // arithmetic computes at load. Embeddings and LM head have 8 bits under int4, too.
    HubDtype hub_dtype = HubDtype::bf16;
};
struct PackProgress {
    std::uint64_t done_bytes = 0, total_bytes = 0;  // of the checkpoint's tensors
    std::uint32_t layer = 0, num_layers = 0;
};
struct PackReport {
    std::uint64_t input_bytes = 0, output_bytes = 0;
    std::uint32_t num_blobs = 0, layers_resumed = 0;
    std::vector<std::string> warnings;  // e.g. no tokenizer: ids only
};
// Packs `checkpoint` into `out`. Calls `progress` after every expert, from any compute thread, one
// call at a time. Bad input removes the written files. A full disk or a killed process leaves them,
// and the same call then resumes.
Result<PackReport> pack_checkpoint(const std::filesystem::path& checkpoint,
                                   const std::filesystem::path& out, const PackOptions& options,
                                   ThreadPool& threads,
                                   const std::function<void(const PackProgress&)>& progress);

}  // namespace moex
