#include "hub/commands/serve/serve_options.h"

#include <algorithm>
#include <random>

#include "hub/commands/load_model.h"
#include "hub/commands/serve/qr.h"
#include "hub/engine/micro_batches.h"
#include "hub/foresight/lossy/speculation.h"
#include "hub/net/access/access.h"

namespace moex {
namespace {

std::uint32_t count_of(const Settings& settings, std::string_view name) {
    return static_cast<std::uint32_t>(settings.number(name));
}

}  // namespace

Status check_serve_settings(const Settings& settings) {
    const bool has_certificate = !settings.text("tls-cert").empty();
    if (has_certificate == settings.text("tls-key").empty())
        return Error{ErrorCode::invalid_argument, "--tls-cert and --tls-key come together"};

    const ListenAddress listen = parse_listen(settings.text("listen")).value();
    if (!net::is_loopback_address(listen.address) && !has_certificate &&
        !settings.on("insecure-http"))
        return Error{ErrorCode::invalid_argument,
                     text("--listen ", settings.text("listen"),
                          " is open to other machines: give --tls-cert and --tls-key (moex-hub "
                          "cert makes them), or --insecure-http behind a proxy that speaks TLS")};

    if (settings.text("backend") == "local" && !settings.on("local-fallback"))
        return Error{ErrorCode::invalid_argument,
                     "--backend local computes on this machine, --local-fallback off forbids "
                     "that: nobody could answer; leave one of them out"};

    if (settings.text("backend") == "local" && shadow_wish(settings))
        return Error{ErrorCode::invalid_argument,
                     "--prefetch shadow:DIR says what workers load next, --backend local asks "
                     "none: leave one of them out"};

    const std::string& experts = settings.text("experts");
    if (experts == "exact" || experts == "speculative") return {};
    const auto way = parse_speculation(experts);
    if (!way.ok())
        return Error{ErrorCode::invalid_argument,
                     text("--experts: ", way.error().message, ", or exact or speculative")};
    return {};
}

std::optional<ShadowWish> shadow_wish(const Settings& settings) {
    const std::string& prefetch = settings.text("prefetch");
    if (!wishes_shadow(prefetch)) return std::nullopt;
    return parse_shadow_wish(prefetch).value();  // the table has checked it
}

std::uint32_t prefetch_per_row(const Settings& settings, const ModelConfig& model) {
    const std::string& prefetch = settings.text("prefetch");
    if (prefetch == "off") return 0;
    if (prefetch == "on") return model.top_k;
    if (const auto shadow = shadow_wish(settings))
        return shadow->fetch > 0 ? shadow->fetch : model.top_k;
    return static_cast<std::uint32_t>(std::stoul(prefetch));  // the table has checked it
}

std::uint32_t micro_batches_of(const Settings& settings) {
    const std::string& wanted = settings.text("micro-batches");
    return wanted == "auto" ? 0 : static_cast<std::uint32_t>(std::stoul(wanted));
}

std::uint32_t micro_batches_max(const Settings& settings) {
    const std::uint32_t fixed = micro_batches_of(settings);
    return fixed > 0 ? fixed : std::min(count_of(settings, "queue-depth"), MicroBatches::most_ever);
}

nlohmann::json describe_settings(const Settings& settings) {
    nlohmann::json rows = nlohmann::json::array();
    for (const Setting& setting : setting_table()) {
        if (!(setting.commands & command_serve) || setting.hidden) continue;
        rows.push_back({{"name", setting.name},
                        {"value", settings.shown(setting)},
                        {"source", setting_source_name(settings.source(setting.name))},
                        {"help", setting.help}});
    }
    return rows;
}

bool changes_while_serving(std::string_view setting) {
    static constexpr std::string_view names[] = {
        "cors-origin",        "host",           "connections-max", "connections-per-address",
        "text-mb-per-minute", "drain-s",        "log-level",       "log-json",
        "api-key-file",       "admin-key-file", "api-key",         "admin-key"};
    return std::find(std::begin(names), std::end(names), setting) != std::end(names);
}

net::ServerOptions server_options_of(const Settings& settings) {
    const ListenAddress listen = parse_listen(settings.text("listen")).value();
    net::ServerOptions options;
    options.listen_address = listen.address;
    options.listen_port = listen.port;
    options.tls_cert = settings.text("tls-cert");
    options.tls_key = settings.text("tls-key");
    options.insecure_http = settings.on("insecure-http");
    options.require_keys = settings.on("require-key");
    options.cors_origins = settings.list("cors-origin");
    options.hosts = settings.list("host");
    options.trusted_proxies = settings.list("trusted-proxy");
    options.static_directory = settings.text("static");
    options.give_model = settings.on("give-model");
    options.test_routes = settings.on("test-routes");

    options.access_log = settings.text("access-log");
    options.access_log_json = settings.on("log-json");
    options.connections_max = count_of(settings, "connections-max");
    options.connections_per_address_max = count_of(settings, "connections-per-address");
    options.workers_per_address_max = count_of(settings, "workers-per-address");
    options.body_bytes_in_flight_max = settings.number("request-memory-mb") << 20;
    options.rates.text_bytes_per_minute = static_cast<double>(settings.number("text-mb-per-minute")
                                                              << 20);
    options.rates.text_bytes_burst = options.rates.text_bytes_per_minute / 4;
    options.drain_within = std::chrono::seconds(settings.number("drain-s"));
    options.qr_rows = qr_rows;
    return options;
}

SwarmOptions swarm_options_of(const Settings& settings,
                              const std::shared_ptr<const ModelPackage>& package,
                              const Registry& registry) {
    const ModelConfig& config = package->config();
    SwarmOptions options;
    options.model_name = package->name();
    options.package_sha256 = package->manifest_sha256();
    options.limits.hidden_size = config.hidden_size;
    options.limits.num_layers = config.num_layers;
    options.limits.num_experts = config.num_experts;
    options.expert_shape = package->expert_shape();
    options.top_k = config.top_k;
    options.expert_blob_bytes = package->expert_blob_bytes();
    options.layer_is_moe = config.layer_is_moe;
    options.blob_hash = [package](std::uint32_t layer, std::uint32_t expert) {
        return package->blob_hash(layer, expert);
    };
    // The same question as at the upgrade, so that a token opens /worker wherever it stands.
    options.token_ok = [&registry](std::string_view token) { return registry.join_allowed(token); };
    options.nonce_of = [&registry](WorkerId worker) {
        return registry.nonces().for_worker(worker);
    };

    options.rounding = rounding_of(settings);
    options.x_int8 = settings.text("wire-x") == "int8";
    options.hedge = parse_hedge_policy(settings.text("hedge")).value();
    options.replicas = count_of(settings, "replicas");
    const auto num_moe_layers = static_cast<std::uint32_t>(
        std::ranges::count_if(options.layer_is_moe, [](auto is_moe) { return is_moe != 0; }));
    const std::uint32_t num_units = num_moe_layers * options.limits.num_experts;
    options.hot.copies_max = (num_units * count_of(settings, "hot-copies") + 99) / 100;
    options.placement = parse_placement(settings.text("placement")).value();
    options.local_fallback = settings.on("local-fallback");
    options.checks.on = settings.on("check-answers");
    // Who knows what is drawn knows which of its answers are looked at.
    std::random_device random;
    options.checks.seed = std::uint64_t{random()} << 32 | random();
    options.workers_per_address_max = count_of(settings, "workers-per-address");
    options.lz4 = settings.on("lz4");
    // Each micro-batch has a round of its own under way.
    options.queue_depth = std::max(count_of(settings, "queue-depth"), micro_batches_of(settings));
    options.timeout_max = std::chrono::milliseconds(settings.number("timeout-ms"));
    options.timeout_min = std::min(options.timeout_min, options.timeout_max);
    options.round_deadline = std::chrono::seconds(settings.number("round-deadline-s"));
    options.holder_wait = std::chrono::seconds(settings.number("holder-wait-s"));
    options.holder_wait_unseen = std::chrono::seconds(settings.number("holder-wait-unseen-s"));
    return options;
}

}  // namespace moex
