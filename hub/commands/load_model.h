// Loads a package and makes its model ready to run on this machine. The commands serve, generate
// and eval share these functions.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "hub/base/thread_pool.h"
#include "hub/commands/command.h"
#include "hub/engine/decoder.h"
#include "hub/engine/engine.h"
#include "hub/engine/local_experts.h"
#include "hub/model/chat_template.h"
#include "hub/model/package/package.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// Returns the folder of the package: the one of --model, or the demo package static/models/demo in
// the current folder, next to the program, or in the installation.
Result<std::filesystem::path> find_model(const Settings& settings);

struct LoadedModel {
    std::shared_ptr<const ModelPackage> package;
    std::shared_ptr<const Tokenizer> tokenizer;  // null if the package has no tokenizer files
    std::shared_ptr<const ChatTemplate> chat_template;  // null if the package has no chat template
    std::unique_ptr<ThreadPool> threads;
    std::unique_ptr<Decoder> decoder;  // null until load_decoder()
    // experts on this machine; null unless the package has all blobs
    std::unique_ptr<LocalExperts> local;
    // arithmetic of the decoder, and the type to which it packs the hub's matrices if one was
    // chosen
    Arithmetic arithmetic = Arithmetic::exact;
    std::optional<PackedDtype> hub_dtype;
    KvDtype kv_dtype = KvDtype::f32;  // format of the KV cache, chosen by settings and arithmetic
};

enum class LoadParts { texts, all_but_decoder, everything };

// Calls `stage` with a description of each loading step, in two or three words. If the settings ask
// for one compute thread per core, a share `spare_share` of the cores (rounded down) gets no
// compute thread.
Result<LoadedModel> load_model(const Settings& settings,
                               const std::function<void(std::string_view)>& stage,
                               LoadParts parts = LoadParts::everything, double spare_share = 0);
// Loads the matrices with which this machine's cores compute, if load_model() omitted them.
Status load_decoder(LoadedModel& model, const Settings& settings,
                    const std::function<void(std::string_view)>& stage);

ExpertRounding rounding_of(const Settings& settings);
EngineOptions engine_options_of(const Settings& settings, const LoadedModel& model);
void set_log_of(const Settings& settings);

}  // namespace moex
