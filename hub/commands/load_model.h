// Loads a package and makes it ready to run on this machine. Shared by serve, generate and eval.
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

// Returns the folder of --model, or of the demo: static/models/demo in the current folder, beside
// the program, or in the installation.
Result<std::filesystem::path> find_model(const Settings& settings);

struct LoadedModel {
    std::shared_ptr<const ModelPackage> package;
    std::shared_ptr<const Tokenizer> tokenizer;         // null if the package has none
    std::shared_ptr<const ChatTemplate> chat_template;  // null if the package has none
    std::unique_ptr<ThreadPool> threads;
    std::unique_ptr<Decoder> decoder;     // null until load_decoder()
    std::unique_ptr<LocalExperts> local;  // null unless the package has all expert blobs
    KvDtype kv_dtype = KvDtype::f32;      // chosen by the settings and the arithmetic
};

enum class LoadParts { texts, all_but_decoder, everything };

// Calls `stage` with a description of each step, in two or three words. If the settings ask for one
// compute thread per core, `spare_share` of the cores (rounded down) get none.
Result<LoadedModel> load_model(const Settings& settings,
                               const std::function<void(std::string_view)>& stage,
                               LoadParts parts = LoadParts::everything, double spare_share = 0);
// Loads the matrices of this machine's cores, if load_model() omitted them.
Status load_decoder(LoadedModel& model, const Settings& settings,
                    const std::function<void(std::string_view)>& stage);

ExpertRounding rounding_of(const Settings& settings);
EngineOptions engine_options_of(const Settings& settings, const LoadedModel& model);
void set_log_of(const Settings& settings);

}  // namespace moex
