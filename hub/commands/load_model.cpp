#include "hub/commands/load_model.h"

#include <algorithm>

#include "hub/base/log.h"
#include "hub/base/num_cores.h"
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

namespace {

// Returns int8 arithmetic unless a setting requires exact arithmetic. Deterministic rounding needs
// sums that are equal on all backends. Experts that were packed in full precision were packed for
// golden tests.
Result<Arithmetic> arithmetic_of(const Settings& settings, const ModelPackage& package) {
    const std::string& asked = settings.text("arithmetic");
    const bool deterministic = settings.on("deterministic");
    if (asked == "int8" && deterministic)
        return Error{ErrorCode::invalid_argument,
                     "--deterministic fixes sums in f32: leave --arithmetic int8 out"};
    if (asked == "exact" || deterministic) return Arithmetic::exact;
    if (asked == "int8" || has_codes(package.expert_dtype())) return Arithmetic::int8;
    return Arithmetic::exact;
}

// Returns the data type to which int8 arithmetic packs the hub's matrices. Matrices that the
// package stores as codes keep their type, except that int8 codes can be rounded again to fewer
// bits.
Result<std::optional<PackedDtype>> hub_dtype_of(const Settings& settings,
                                                const ModelPackage& package) {
    const std::string& asked = settings.text("hub-dtype");
    if (asked == "bf16")
        return Error{ErrorCode::invalid_argument,
                     "--hub-dtype bf16 is for pack and synth; --arithmetic exact computes with "
                     "what the package has"};

    const HubDtype has = package.hub_dtype();
    if ((asked == "int8" || asked == "int6") && has == HubDtype::int4)
        log_warn("model: the package has its hub's matrices in 4 bits, and they stay so",
                 kv("asked", asked));
    if ((asked == "int4" || asked == "int6") && has == HubDtype::int8)
        log_warn(text("model: matrices of 8 bits are rounded again to ", asked == "int4" ? 4 : 6,
                      "; a package of bf16 loses less"),
                 kv("asked", asked));
    if (asked == "auto") return std::optional<PackedDtype>();
    return std::optional(asked == "int4"   ? PackedDtype::int4
                         : asked == "int6" ? PackedDtype::int6
                                           : PackedDtype::int8);
}

KvDtype kv_dtype_of(const Settings& settings, Arithmetic arithmetic) {
    if (const auto asked = parse_kv_dtype(settings.text("kv-dtype"))) return *asked;
    return arithmetic == Arithmetic::exact ? KvDtype::f32 : KvDtype::f16;
}

// Falls back to exact arithmetic if packed experts do not fit into memory. Packed experts are a
// copy in memory, while exact experts stay mapped, and the kernel may evict their pages.
Arithmetic expert_arithmetic(Arithmetic asked, const ModelPackage& package) {
    const std::uint64_t bytes = package.num_blobs() * package.expert_blob_bytes(),
                        available = memory_available();
    if (asked == Arithmetic::exact || bytes < available) return asked;

    log_warn("model: no memory for packed experts, they are computed exactly",
             kv("experts_mb", bytes >> 20), kv("available_mb", available >> 20));
    return Arithmetic::exact;
}

}  // namespace

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
                               const std::function<void(std::string_view)>& stage, LoadParts parts,
                               double spare_share) {
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
    if (parts == LoadParts::texts) return model;

    std::size_t num_threads = settings.number("threads");
    if (num_threads == 0) {
        const unsigned cores = num_cores();
        num_threads = cores - static_cast<unsigned>(cores * spare_share);
    }
    model.threads = std::make_unique<ThreadPool>(num_threads);
    MOEX_ASSIGN(arithmetic, arithmetic_of(settings, *model.package));
    model.arithmetic = arithmetic;
    MOEX_ASSIGN(hub_dtype, hub_dtype_of(settings, *model.package));
    model.hub_dtype = hub_dtype;
    model.kv_dtype = kv_dtype_of(settings, arithmetic);
    if (parts == LoadParts::everything) MOEX_TRY(load_decoder(model, settings, stage));

    // A package may have no expert blobs, if the operator serves them from another machine.
    if (model.package->holds_all_blobs())
        model.local = std::make_unique<LocalExperts>(model.package, *model.threads,
                                                     rounding_of(settings),
                                                     expert_arithmetic(arithmetic, *model.package));
    return model;
}

Status load_decoder(LoadedModel& model, const Settings& settings,
                    const std::function<void(std::string_view)>& stage) {
    stage("loading tensors");
    MOEX_ASSIGN(decoder,
                Decoder::create(model.package, *model.threads,
                                {.arithmetic = model.arithmetic, .hub_dtype = model.hub_dtype}));
    model.decoder = std::move(decoder);
    return {};
}

EngineOptions engine_options_of(const Settings& settings, const LoadedModel& model) {
    EngineOptions options;
    options.kv_dtype = model.kv_dtype;
    constexpr std::uint64_t kv_bytes_min = 256ull << 20;
    options.kv_bytes_max = settings.number("kv-mb") << 20;
    // The system allocates memory of the KV cache page by page, when a page is first used, so the
    // limit may be generous.
    if (options.kv_bytes_max == 0)
        options.kv_bytes_max = std::max(kv_bytes_min, memory_available() / 4);
    return options;
}

}  // namespace moex
