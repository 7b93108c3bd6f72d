// moex-hub serve: opens the model, builds the rooms, prints the links, runs until a signal.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

#include "hub/base/log.h"
#include "hub/commands/command.h"
#include "hub/commands/drop_privileges.h"
#include "hub/commands/load_model.h"
#include "hub/commands/progress.h"
#include "hub/commands/qr.h"
#include "hub/commands/signals.h"
#include "hub/net/access.h"
#include "hub/net/server.h"

namespace moex {
namespace {

ServerOptions server_options_of(const Settings& settings) {
    const ListenAddress listen = parse_listen(settings.text("listen")).value();
    ServerOptions options;
    options.listen_address = listen.address;
    options.listen_port = listen.port;
    options.tls_cert = settings.text("tls-cert");
    options.tls_key = settings.text("tls-key");
    options.insecure_http = settings.on("insecure-http");
    options.cors_origins = settings.list("cors-origin");
    options.hosts = settings.list("host");
    options.trusted_proxies = settings.list("trusted-proxy");
    options.static_directory = settings.text("static");
    options.connections_max = static_cast<std::uint32_t>(settings.number("connections-max"));
    options.connections_per_address_max = static_cast<std::uint32_t>(
        settings.number("connections-per-address"));
    options.body_bytes_in_flight_max = settings.number("request-memory-mb") << 20;
    options.workers_per_address_max = static_cast<std::uint32_t>(
        settings.number("workers-per-address"));
    options.drain_within = std::chrono::seconds(settings.number("drain-s"));
    options.test_routes = settings.on("test-routes");
    options.require_keys = settings.on("require-key");
    return options;
}

SwarmOptions swarm_options_of(const Settings& settings,
                              const std::shared_ptr<const ModelPackage>& package,
                              Registry& registry) {
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
    options.token_ok = [&registry](std::string_view token) {
        return registry.key_role(token) == Role::join;
    };
    options.rounding = rounding_of(settings);
    options.hedge = parse_hedge_policy(settings.text("hedge")).value();
    options.replicas = static_cast<std::uint32_t>(settings.number("replicas"));
    options.local_fallback = settings.on("local-fallback");
    options.lz4 = settings.on("lz4");
    options.queue_depth = static_cast<std::uint32_t>(settings.number("queue-depth"));
    options.timeout_max = std::chrono::milliseconds(settings.number("timeout-ms"));
    options.timeout_min = std::min(options.timeout_min, options.timeout_max);
    options.round_deadline = std::chrono::seconds(settings.number("round-deadline-s"));
    return options;
}

void log_worker_event(const WorkerEvent& event) {
    const std::string device = event.view ? text(" ", event.view->device.backend, "/",
                                                 event.view->device.description)
                                          : std::string();
    const auto line = [&](auto log, const char* what) {
        log(text("dispatch: worker ", what, " worker=", event.worker, " device=\"",
                 device.empty() ? "" : device.substr(1), "\"",
                 event.detail.empty() ? "" : text(" detail=\"", event.detail, "\"")));
    };
    const auto info = [](const std::string& text) { log_info(text); };
    const auto warn = [](const std::string& text) { log_warn(text); };
    switch (event.kind) {
        case WorkerEvent::Kind::joined: return line(info, "joined");
        case WorkerEvent::Kind::ready: return line(info, "ready");
        case WorkerEvent::Kind::left: return line(info, "left");
        case WorkerEvent::Kind::healthy: return line(info, "healthy");
        case WorkerEvent::Kind::unhealthy: return line(warn, "unhealthy");
        case WorkerEvent::Kind::removed: return line(warn, "removed");
    }
}

// The first line of a key file, or the environment's value; empty when neither is given.
Result<std::string> read_key(const Settings& settings, const char* secret,
                             const char* file_setting) {
    std::string key = settings.text(secret);
    if (const std::string& path = settings.text(file_setting); key.empty() && !path.empty()) {
        std::ifstream file(path);
        if (!std::getline(file, key))
            return Error{ErrorCode::io_error,
                         text(path, ": cannot be read, or its first line is empty")};
        while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    }
    constexpr std::size_t key_bytes_min = 16;
    if (!key.empty() && key.size() < key_bytes_min)
        return Error{ErrorCode::invalid_argument,
                     text(file_setting, ": a key has at least ", key_bytes_min, " characters")};
    return key;
}

struct Keys {
    std::string api_shown, admin_shown;  // made just now; never shown again
};
Result<Keys> prepare_keys(const Settings& settings, Registry& registry, bool required) {
    Keys keys;
    for (const auto& [role, secret, file] :
         {std::tuple{Role::api, "api-key", "api-key-file"},
          std::tuple{Role::admin, "admin-key", "admin-key-file"}}) {
        MOEX_ASSIGN(key, read_key(settings, secret, file));
        if (!key.empty()) MOEX_TRY(registry.set_key(role, "host's own", key));
    }
    if (!required) return keys;
    if (!registry.has_key(Role::api)) {
        MOEX_ASSIGN(made, registry.create_key(Role::api, "first start"));
        keys.api_shown = std::move(made);
    }
    if (!registry.has_key(Role::admin)) {
        MOEX_ASSIGN(made, registry.create_key(Role::admin, "first start"));
        keys.admin_shown = std::move(made);
    }
    return keys;
}

// One line that is rewritten on a terminal, silent elsewhere: the log tells the story there.
void show_stage(std::string_view stage) {
    static int number = 0;
    constexpr int num_stages = 4;
    if (isatty(STDERR_FILENO) != 1) return;
    std::string bar;
    number = std::min(number + 1, num_stages);
    for (int i = 0; i < num_stages; ++i) bar += i < number ? "█████" : "░░░░░";
    std::fprintf(stderr, "\r\x1b[K%s %.*s", bar.c_str(), static_cast<int>(stage.size()),
                 stage.data());
    if (number == num_stages) std::fprintf(stderr, "\r\x1b[K");
}

void print_links(const Settings& settings, const Server& server, const ModelPackage& package,
                 const Keys& keys) {
    const std::string url = server.base_url(), join = server.join_url();
    std::printf(
        "\n  %s is served\n\n  chat   %s/\n  join   %s\n  status %s/status.html\n  API    %s/v1  "
        "(model \"%s\")\n",
        package.name().c_str(), url.c_str(), join.c_str(), url.c_str(), url.c_str(),
        package.name().c_str());
    if (!keys.api_shown.empty())
        std::printf("\n  API key, shown this once:   %s\n", keys.api_shown.c_str());
    if (!keys.admin_shown.empty())
        std::printf("  admin key, shown this once: %s\n", keys.admin_shown.c_str());
    if (settings.on("qr") || isatty(STDOUT_FILENO) == 1)
        if (const std::string code = qr_half_blocks(join); !code.empty())
            std::printf("\n  join by phone or another machine:\n%s", code.c_str());
    std::printf("\nready: url=%s join=%s api=%s/v1\n", url.c_str(), join.c_str(), url.c_str());
    std::fflush(stdout);
}

}  // namespace

namespace {
// Each connection is a file; the usual soft limit of 1,024 is for programs that use select().
void raise_open_files() {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= files.rlim_max) return;
    files.rlim_cur = files.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &files);
}
}  // namespace

int run_serve(const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    set_log_of(settings);
    const ServerOptions server_options = server_options_of(settings);
    const bool is_loopback = is_loopback_address(server_options.listen_address);
    if (server_options.tls_cert.empty() != server_options.tls_key.empty()) {
        fail("--tls-cert and --tls-key come together");
        return exit_wrong_arguments;
    }
    if (!is_loopback && server_options.tls_cert.empty() && !server_options.insecure_http) {
        fail(text("--listen ", settings.text("listen"),
                  " is open to other machines: give --tls-cert and --tls-key (moex-hub cert makes "
                  "them), or --insecure-http "
                  "behind a proxy that speaks TLS"));
        return exit_wrong_arguments;
    }

    if (settings.text("backend") == "local" && !settings.on("local-fallback")) {
        fail(
            "--backend local computes on this machine, --local-fallback off forbids that: nobody "
            "could answer; leave one of them out");
        return exit_wrong_arguments;
    }

    // Threads inherit the blocked signals, so the watcher comes first; the server
    // comes into being later. The server's own handler is left with SIGHUP.
    std::mutex stop_mutex;
    Server* running_server = nullptr;
    int num_signals = 0;
    SignalWatcher signals([&](int count, int) {
        const std::lock_guard lock(stop_mutex);
        num_signals = count;
        if (!running_server) std::_Exit(exit_stopped);  // still loading: nothing to drain
        log_info(count == 1 ? "hub: stopping, once more stops at once" : "hub: stopping at once");
        running_server->stop();
    });

    std::optional<SystemUser> user;
    if (const std::string& name = settings.text("user"); !name.empty() && geteuid() == 0) {
        auto found = find_user(name);
        if (!found.ok()) return fail(found.error().message);
        user = *std::move(found);
    } else if (geteuid() == 0) {
        log_warn(
            "hub: runs as root; --user NAME lets it become somebody else once the port is bound");
    }
    std::filesystem::path state_directory = settings.text("state");
    if (state_directory.empty())
        state_directory = user ? user->home / ".local/state/moex" : default_state_directory();

    if (user)
        if (const Status given = give_folder(state_directory, *user); !given.ok())
            return fail(given.error().message);
    std::optional<ActingAs> acting;
    // what the user may not read must fail now, not at the first request
    if (user) acting.emplace(*user);
    const TimePoint started_at = now_steady();
    raise_open_files();
    auto model = load_model(settings, show_stage, invocation.check_only);
    if (!model.ok()) return fail(model.error().message);
    if (invocation.check_only) {
        std::printf("settings and %s are right\n", model->package->name().c_str());
        return exit_stopped;
    }
    const bool swarm_computes = settings.text("backend") == "swarm";
    if (const Status whole = model->package->require_all_blobs(); !whole.ok()) {
        if (!swarm_computes)
            return fail(text(whole.error().message, "; --backend local computes on this machine"));
        if (settings.on("local-fallback") ||
            model->package->num_missing_blobs() < model->package->num_blobs())
            log_warn(
                "hub: expert blobs are missing, so only workers compute, and this address has to "
                "serve /weights from elsewhere",
                kv("missing", model->package->num_missing_blobs()),
                kv("blobs", model->package->num_blobs()));
    }
    auto opened = Registry::open(state_directory);
    if (!opened.ok()) return fail(opened.error().message);
    const std::unique_ptr<Registry> registry = *std::move(opened);
    auto keys = prepare_keys(settings, *registry, keys_required(server_options));
    if (!keys.ok()) return fail(keys.error().message);
    auto join_token = registry->join_token();
    if (!join_token.ok()) return fail(join_token.error().message);
    // HELLO's token is looked up among the keys; a new token ends the old one.
    if (const Status added = registry->set_key(Role::join, "link", *join_token); !added.ok())
        return fail(added.error().message);
    acting.reset();

    Server server(server_options, model->package, *registry);
    if (user) become(*user);
    SwarmBackend swarm(swarm_options_of(settings, model->package, *registry), server.swarm_host(),
                       model->local.get(), [&server](const WorkerEvent& event, const WorkerView*) {
                           server.on_worker_event(event);
                           log_worker_event(event);
                       });
    EngineOptions engine_options = engine_options_of(settings);
    engine_options.sequences_max = static_cast<std::uint32_t>(settings.number("sequences-max"));
    engine_options.queue_max = static_cast<std::uint32_t>(settings.number("queue-max"));
    ExpertBackend& experts = swarm_computes ? static_cast<ExpertBackend&>(swarm) : *model->local;
    Engine engine(*model->decoder, experts, engine_options);
    ApiOptions api_options;
    api_options.default_max_tokens = static_cast<std::uint32_t>(
        settings.number("max-tokens-default"));
    api_options.context_tokens = static_cast<std::uint32_t>(settings.number("context"));
    Api api(model->package, model->tokenizer, model->chat_template, engine, api_options,
            server.api_observer());
    server.attach(swarm, engine, api);
    log_info("hub: listens", kv("address", server_options.listen_address),
             kv("port", server.port()));
    log_info(
        "hub: ready", kv("model", model->package->name()), kv("backend", experts.name()),
        kv("loaded_ms", to_ms(now_steady() - started_at)),
        kv("threads", model->threads->num_threads()),
        kv("kv_tokens", std::uint64_t{engine.counters().kv_pages} * engine_options.page_tokens));
    print_links(settings, server, *model->package, *keys);
    {
        const std::lock_guard lock(stop_mutex);
        running_server = &server;
        if (num_signals > 0) server.stop();
    }
    server.run(settings.number("net-threads"));
    {
        const std::lock_guard lock(stop_mutex);
        running_server = nullptr;
        num_signals = 0;
    }
    log_info("hub: stopped");
    return exit_stopped;
}

}  // namespace moex
