#include "hub/commands/serve/serve_options.h"

#include <algorithm>
#include <random>

#include "hub/commands/serve/qr.h"
#include "hub/engine/micro_batches.h"
#include "hub/engine/own_layers.h"
#include "hub/net/fleet/worker_moves.h"

namespace moex {

std::uint32_t prefetch_per_row(const PrefetchSettings& prefetch, const ModelConfig& model) {
    if (!prefetch.is_on) return 0;
    return prefetch.experts_per_row > 0 ? prefetch.experts_per_row : model.top_k;
}

std::uint32_t micro_batches_max(const ServeSettings& settings) {
    if (settings.model.micro_batches > 0) return settings.model.micro_batches;
    return std::min(settings.contributors.wire.queue_depth, MicroBatches::most_ever);
}

nlohmann::json describe_settings(const Settings& settings) {
    nlohmann::json rows = nlohmann::json::array();
    for (const Setting& setting : setting_table()) {
        if (!(setting.commands & command_serve) || setting.is_hidden()) continue;
        std::string help(setting.help);
        std::string::size_type at = 0;
        while ((at = help.find('\n', at)) != std::string::npos) help.replace(at, 1, "; ");
        rows.push_back({{"name", setting.name},
                        {"value", settings.shown(setting)},
                        {"source", setting_source_name(settings.source(setting.name))},
                        {"help", std::move(help)}});
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

net::ServerOptions server_options_of(const ServeSettings& settings) {
    const AddressSettings& address = settings.address;
    net::ServerOptions options;
    options.listen_address = address.listen.address;
    options.listen_port = address.listen.port;
    options.tls_cert = address.tls_cert;
    options.tls_key = address.tls_key;
    options.insecure_http = address.allows_insecure_http;
    options.require_keys = address.keys.required_on_loopback;
    options.cors_origins = address.cors_origins;
    options.hosts = address.hosts;
    options.trusted_proxies = address.trusted_proxies;
    options.static_directory = address.static_directory;
    options.give_model = settings.model.gives_model;
    options.test_routes = address.has_test_routes;

    const ConnectionLimits& limits = address.limits;
    options.access_log = settings.logs.access_log;
    options.access_log_json = settings.logs.is_json;
    options.connections_max = limits.connections_max;
    options.connections_per_address_max = limits.connections_per_address_max;
    options.workers_per_address_max = settings.contributors.workers_per_address_max;
    options.body_bytes_in_flight_max = limits.request_memory_bytes_max;
    options.rates.text_bytes_per_minute = static_cast<double>(limits.text_bytes_per_minute);
    options.rates.text_bytes_burst = options.rates.text_bytes_per_minute / 4;
    options.drain_within = limits.drain_within;
    options.qr_rows = qr_rows;
    return options;
}

SwarmOptions swarm_options_of(const ServeSettings& settings,
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
    options.layer_is_moe = config.layer_is_moe();
    // The swarm knows of no experts in layers whose experts only this machine computes.
    const auto is_own = own_layers(config.num_layers, settings.contributors.own_layers);
    for (std::size_t layer = 0; layer < is_own.size(); ++layer)
        if (is_own[layer] != 0) options.layer_is_moe[layer] = 0;
    options.blob_hash = [package](std::uint32_t layer, std::uint32_t expert) {
        return package->blob_hash(layer, expert);
    };
    // Check the join token. The HTTP upgrade of a worker's connection makes the same check, so that
    // a token is accepted in the URL and in HELLO alike.
    options.token_ok = [&registry](std::string_view token) { return registry.join_allowed(token); };
    if (registry.is_shared())
        options.fleet = [&registry] {
            const auto fleet = registry.fleet();
            return net::places_of(fleet->self, fleet->members);
        };
    options.nonce_of = [&registry](WorkerId worker) {
        return registry.nonces().for_worker(worker);
    };

    const ContributorSettings& contributors = settings.contributors;
    options.rounding = contributors.wire.rounding;
    options.x_int8 = contributors.wire.x_is_int8;
    options.hedge = contributors.hedge;
    options.replicas = contributors.replicas;
    const auto num_moe_layers = static_cast<std::uint32_t>(
        std::ranges::count_if(options.layer_is_moe, [](auto is_moe) { return is_moe != 0; }));
    const std::uint32_t num_units = num_moe_layers * options.limits.num_experts;
    options.hot.copies_max = (num_units * contributors.hot_percent + 99) / 100;
    options.placement = contributors.placement;
    options.local_fallback = contributors.has_local_fallback;
    options.use_workers = contributors.use_workers;
    options.checks.on = contributors.checks_answers;
    // The seed is random, because a worker that could predict the random draws would know which of
    // its answers the hub checks.
    std::random_device random;
    options.checks.seed = std::uint64_t{random()} << 32 | random();
    options.spans.seed = std::uint64_t{random()} << 32 | random();
    options.workers_per_address_max = contributors.workers_per_address_max;
    options.lz4 = contributors.wire.lz4;
    // Allow one round in flight for each micro-batch.
    options.queue_depth = std::max(contributors.wire.queue_depth, settings.model.micro_batches);
    options.timeout_max = contributors.waits.attempt_max;
    options.timeout_min = std::min(options.timeout_min, options.timeout_max);
    options.round_deadline = contributors.waits.round_deadline;
    options.holder_wait = contributors.waits.holder;
    options.holder_wait_unseen = contributors.waits.unseen_holder;
    return options;
}

Status check_own_layers(std::uint32_t count, bool contributors_compute,
                        const ModelPackage& package) {
    if (count == 0) return {};
    const auto refuse = [&](auto&&... words) {
        return Error{ErrorCode::invalid_argument, text("--own-layers ", count, ": ", words...)};
    };
    if (!contributors_compute)
        return refuse("this machine computes all experts, so leave the flag out.");
    const std::uint32_t num_layers = package.config().num_layers;
    if (count >= num_layers)
        return refuse("the model has ", num_layers,
                      " layers; --backend local computes all of them here.");
    if (const Status whole = package.require_all_blobs(); !whole.ok())
        return refuse("this machine lacks experts: ", whole.error().message);
    return {};
}

}  // namespace moex
