// A package made ready to run on this machine: what serve, generate and eval share.
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

// --model, or the demo: static/models/demo here, beside the program, or where it was installed.
Result<std::filesystem::path> find_model(const Settings& settings);

struct LoadedModel {
    std::shared_ptr<const ModelPackage> package;
    std::shared_ptr<const Tokenizer> tokenizer;         // null when the package has none
    std::shared_ptr<const ChatTemplate> chat_template;  // null when the package has none
    std::unique_ptr<ThreadPool> threads;
    std::unique_ptr<Decoder> decoder;     // null until load_decoder()
    std::unique_ptr<LocalExperts> local;  // null unless all expert blobs are here
    KvDtype kv_dtype = KvDtype::f32;      // that the settings and the arithmetic ask for
};

enum class LoadParts { texts, all_but_decoder, everything };

// `stage` hears what is being done, in two or three words. Where the settings ask for a compute
// thread a core, `spare_share` of the cores have none, rounded down.
Result<LoadedModel> load_model(const Settings& settings,
                               const std::function<void(std::string_view)>& stage,
                               LoadParts parts = LoadParts::everything, double spare_share = 0);
// The matrices of this machine's cores, where load_model() left them out.
Status load_decoder(LoadedModel& model, const Settings& settings,
                    const std::function<void(std::string_view)>& stage);

ExpertRounding rounding_of(const Settings& settings);
EngineOptions engine_options_of(const Settings& settings, const LoadedModel& model);
void set_log_of(const Settings& settings);

}  // namespace moex
