#include "hub/commands/load_model.h"

#include <algorithm>

#include "hub/base/log.h"
#include "hub/base/system_memory.h"

namespace moex {

Result<std::filesystem::path> find_model(const Settings& settings) {
    if (const std::string& given = settings.text("model"); !given.empty())
        return std::filesystem::path(given);

    const std::filesystem::path demo = "static/models/demo";
    std::error_code failure;
    const std::filesystem::path program =
        std::filesystem::read_symlink("/proc/self/exe", failure).parent_path();

    for (const auto& candidate :
         {demo, program / ".." / demo, program / "../share/moex/models/demo"})
        if (std::filesystem::exists(candidate / "manifest.json", failure))
            return candidate.lexically_normal();

    return Error{ErrorCode::not_found,
                 "no demo model in static/models/demo here or beside the program; name a package "
                 "with --model DIR"};
}

ExpertRounding rounding_of(const Settings& settings) {
    return {.deterministic = settings.on("deterministic"),
            .wire_dtype = parse_dtype(settings.text("wire-dtype")).value()};
}

void set_log_of(const Settings& settings) {
    const std::string& level = settings.text("log-level");
    set_log(level == "debug"   ? LogLevel::debug
            : level == "warn"  ? LogLevel::warn
            : level == "error" ? LogLevel::error
                               : LogLevel::info,
            settings.on("log-json"));
}

Result<LoadedModel> load_model(const Settings& settings,
                               const std::function<void(std::string_view)>& stage,
                               bool texts_only) {
    LoadedModel model;
    MOEX_ASSIGN(directory, find_model(settings));
    stage("reading package");
    MOEX_ASSIGN(package, ModelPackage::open(directory));
    model.package = std::move(package);

    stage("reading tokenizer");
    if (const auto tokenizer_json = model.package->tokenizer_file("tokenizer.json")) {
        const auto tokenizer_config = model.package->tokenizer_file("tokenizer_config.json");
        MOEX_ASSIGN(tokenizer, Tokenizer::load(*tokenizer_json, tokenizer_config.value_or("")));
        model.tokenizer = std::move(tokenizer);

        if (tokenizer_config) {
            auto chat_template = ChatTemplate::from_tokenizer_config(*tokenizer_config);
            if (chat_template.ok())
                model.chat_template = *std::move(chat_template);
            else if (chat_template.error().code != ErrorCode::not_found)
                return chat_template.error();
        }
    }
    if (texts_only) return model;

    model.threads = std::make_unique<ThreadPool>(settings.number("threads"));
    stage("loading tensors");
    MOEX_ASSIGN(decoder, Decoder::create(model.package, *model.threads));
    model.decoder = std::move(decoder);

    // A package may come without blobs: the hub of a host who serves them elsewhere.
    if (model.package->holds_all_blobs())
        model.local = std::make_unique<LocalExperts>(model.package, *model.threads,
                                                     rounding_of(settings));
    return model;
}

EngineOptions engine_options_of(const Settings& settings) {
    EngineOptions options;
    constexpr std::uint64_t kv_bytes_min = 256ull << 20;
    options.kv_bytes_max = settings.number("kv-mb") << 20;
    // Taken page by page, as it is used.
    if (options.kv_bytes_max == 0)
        options.kv_bytes_max = std::max(kv_bytes_min, memory_available() / 4);
    return options;
}

}  // namespace moex
