#include "hub/commands/serve/kept_pages.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "hub/api/jobs/prefill_job.h"
#include "hub/base/log.h"
#include "hub/base/sha256.h"
#include "hub/net/access/access.h"
#include "protocol/check.h"

namespace moex {
namespace {

constexpr const char* credential_name = "moex-kv-key";

// A client is an address, a blank, and the hash of its API key, which may be empty
// (hub/net/routes/routes.cpp). The id of a key is the beginning of its hash.
std::string key_id_of(std::string_view client) {
    constexpr std::size_t id_digits = 8;
    const std::size_t blank = client.rfind(' ');
    return blank == std::string_view::npos ? std::string()
                                           : std::string(client.substr(blank + 1, id_digits));
}

KvWeights weights_of(const LoadedModel& model, bool on_gpu) {
    if (on_gpu || model.arithmetic == Arithmetic::exact) return KvWeights::package;
    const HubDtype has = model.package->hub_dtype();
    if (has == HubDtype::int4) return KvWeights::int4;
    if (!model.hub_dtype) return has == HubDtype::int8 ? KvWeights::int8 : KvWeights::int6;
    return *model.hub_dtype == PackedDtype::int4   ? KvWeights::int4
           : *model.hub_dtype == PackedDtype::int6 ? KvWeights::int6
                                                   : KvWeights::int8;
}

KvRowType row_type_of(KvDtype dtype, bool on_gpu) {
    switch (dtype) {
        case KvDtype::f32: return KvRowType::f32;
        case KvDtype::f16: return KvRowType::f16;
        case KvDtype::int8: break;
    }
    return on_gpu ? KvRowType::u8 : KvRowType::int8;
}

KvRounding rounding_of(const ExpertRounding& rounding) {
    if (!rounding.deterministic) return KvRounding::any;
    switch (rounding.wire_dtype) {
        case Dtype::f16: return KvRounding::f16;
        case Dtype::bf16: return KvRounding::bf16;
        case Dtype::int8: return KvRounding::int8;
        case Dtype::f32: return KvRounding::f32;
        case Dtype::int4: break;
    }
    MOEX_CHECK(false, text("rows are never sent as ", dtype_name(rounding.wire_dtype)));
    return KvRounding::any;
}

}  // namespace

KvSource source_of_pages(const ServeSettings& settings, const KeptPagesParts& parts) {
    const ModelPackage& package = *parts.model.package;
    const ModelConfig& config = package.config();
    std::string texts;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
        texts += package.tokenizer_file(name).value_or("");
    KvSource source;
    source.model = parse_sha256(package.manifest_sha256()).value();
    source.texts = sha256(as_byte_view(texts));
    source.arithmetic = parts.on_gpu                                  ? KvArithmetic::gpu
                        : parts.model.arithmetic == Arithmetic::exact ? KvArithmetic::exact
                                                                      : KvArithmetic::integer;
    source.weights = weights_of(parts.model, parts.on_gpu);
    source.rounding = rounding_of(settings.contributors.wire.rounding);
    source.row_type = row_type_of(parts.engine.kv_dtype, parts.on_gpu);
    source.end_layer = config.num_layers;
    source.num_kv_heads = config.num_kv_heads;
    // The hash of the manifest covers the plans of all layers; the first layer's is written out.
    const LayerPlan& plan = config.layers.front();
    source.head_dim = config.head_dim;
    source.rotary_size = plan.rope.rotary_size > 0 ? plan.rope.rotary_size : config.head_dim;
    source.window = plan.window;
    source.rope_base = plan.rope.theta;
    source.rope_scaling = plan.rope.scaling;
    source.norm_epsilon = config.rms_norm_eps;
    source.page_tokens = parts.engine.page_tokens;
    return source;
}

std::optional<KvSource> handed_source(const ServeSettings& settings, const KeptPagesParts& parts) {
    const ModelConfig& config = parts.model.package->config();
    const bool has_windows = std::any_of(config.layers.begin(), config.layers.end(),
                                         [](const LayerPlan& plan) { return plan.window > 0; });
    if (!settings.model.gives_model || has_windows || config.has_delta_net() ||
        handed_page_tokens % parts.engine.page_tokens != 0)
        return std::nullopt;
    return source_of_pages(settings, parts);
}

std::filesystem::path kept_pages_folder(const std::filesystem::path& state_directory) {
    return state_directory / "kv-pages";
}

std::uint64_t kept_bytes_max(const ServeSettings& settings,
                             const std::filesystem::path& state_directory) {
    const PageSettings& pages = settings.model.pages;
    if (pages.bytes_max) return *pages.bytes_max;
    if (!net::is_loopback_address(settings.address.listen.address) ||
        !settings.address.trusted_proxies.empty())
        return 0;
    constexpr std::uint64_t default_max = 8ull << 30, free_share = 10;
    std::error_code failure;
    const auto space = std::filesystem::space(state_directory, failure);
    return failure ? 0 : std::min<std::uint64_t>(default_max, space.available / free_share);
}

Result<std::unique_ptr<DiskPages>> open_kept_pages(const ServeSettings& settings,
                                                   const std::filesystem::path& state_directory,
                                                   const KeptPagesParts& parts) {
    const PageSettings& pages = settings.model.pages;
    const std::uint64_t bytes_max = kept_bytes_max(settings, state_directory);
    // Pages on disk have no recurrent states.
    if (bytes_max == 0 || !parts.engine.prefix_cache || parts.engine.noise_prompts ||
        parts.model.package->config().has_delta_net())
        return std::unique_ptr<DiskPages>();

    PageKeyPlaces places{.file = pages.key_file, .made = state_directory / "kv-key"};
    if (const char* const folder = std::getenv("CREDENTIALS_DIRECTORY"))
        places.credential = std::filesystem::path(folder) / credential_name;
    const auto key = load_page_key(places);
    if (!key.ok() && !pages.key_file.empty())
        return Error{key.error().code, text("--kv-key-file: ", key.error().message)};

    const auto without = [&](const Error& why) {
        log_warn("state: no page of a prompt is kept on disk", kv("because", why.message));
        return std::unique_ptr<DiskPages>();
    };
    if (!key.ok()) return without(key.error());

    DiskPagesOptions options;
    options.folder = kept_pages_folder(state_directory);
    options.key = *key;
    options.source = source_of_pages(settings, parts);
    for (const LayerPlan& plan : parts.model.package->config().layers)
        if (!parts.has_whole_pages && plan.window > 0) {
            ++options.num_window_layers;
            options.window = std::max(options.window, plan.window);
        }
    options.bytes_max = bytes_max;
    options.keep = pages.keep;
    options.key_id_of = key_id_of;
    options.key_is_valid = [&registry = parts.registry](std::string_view id) {
        return registry.key_opens(id);
    };
    options.worker_is_banned = [&registry = parts.registry](std::string_view worker_key) {
        return registry.bans().left_s(worker_key, std::time(nullptr)) > 0;
    };
    auto opened = DiskPages::open(std::move(options));
    if (!opened.ok()) return without(opened.error());
    return opened;
}

}  // namespace moex
