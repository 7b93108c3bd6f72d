#include "hub/commands/serve/serve_settings.h"

#include "hub/commands/load_model.h"
#include "hub/net/access/access.h"
#include "hub/options/options_shadow.h"

namespace moex {
namespace {

// Reads single settings as typed values. The table of settings has checked every value, so a value
// that cannot be converted here is a bug of this program and not a mistake of the operator.
class SettingReader {
  public:
    explicit SettingReader(const Settings& settings) : settings_(settings) {}

    const std::string& text(std::string_view name) const { return settings_.text(name); }
    bool on(std::string_view name) const { return settings_.on(name); }
    double real(std::string_view name) const { return settings_.real(name); }
    const std::vector<std::string>& list(std::string_view name) const {
        return settings_.list(name);
    }
    std::uint32_t count(std::string_view name) const {
        return static_cast<std::uint32_t>(settings_.number(name));
    }
    std::uint64_t mebibytes(std::string_view name) const { return settings_.number(name) << 20; }
    std::chrono::seconds seconds(std::string_view name) const {
        return std::chrono::seconds(settings_.number(name));
    }

  private:
    const Settings& settings_;
};

AddressSettings address_of(const SettingReader& read) {
    AddressSettings address;
    address.listen = parse_listen(read.text("listen")).value();
    address.tls_cert = read.text("tls-cert");
    address.tls_key = read.text("tls-key");
    address.allows_insecure_http = read.on("insecure-http");
    address.keys = {.required_on_loopback = read.on("require-key"),
                    .api_key = read.text("api-key"),
                    .admin_key = read.text("admin-key"),
                    .api_key_file = read.text("api-key-file"),
                    .admin_key_file = read.text("admin-key-file")};
    address.hosts = read.list("host");
    address.cors_origins = read.list("cors-origin");
    address.trusted_proxies = read.list("trusted-proxy");
    address.user = read.text("user");
    address.state_directory = read.text("state");
    address.store_url = read.text("store");
    address.fleet_key_file = read.text("fleet-key");
    address.static_directory = read.text("static");
    address.limits = {.connections_max = read.count("connections-max"),
                      .connections_per_address_max = read.count("connections-per-address"),
                      .request_memory_bytes_max = read.mebibytes("request-memory-mb"),
                      .text_bytes_per_minute = read.mebibytes("text-mb-per-minute"),
                      .num_threads = read.count("net-threads"),
                      .drain_within = read.seconds("drain-s")};
    address.always_prints_qr = read.on("qr");
    address.has_test_routes = read.on("test-routes");
    return address;
}

ModelSettings model_of(const SettingReader& read) {
    ModelSettings model;
    model.gpu = {.device = read.text("gpu"),
                 .memory_bytes_max = read.mebibytes("gpu-mb"),
                 .stays_awake = read.text("gpu-awake") == "auto"};
    model.kv_bytes_max = read.mebibytes("kv-mb");
    model.state_bytes_max = read.mebibytes("state-mb");
    model.is_deterministic = read.on("deterministic");
    model.sequences_max = read.count("sequences-max");
    model.queue_max = read.count("queue-max");
    model.context_tokens = read.count("context");
    model.default_max_tokens = read.count("max-tokens-default");
    model.step_stretch_max = read.real("step-stretch");
    if (const std::string& parts = read.text("micro-batches"); parts != "auto")
        model.micro_batches = static_cast<std::uint32_t>(std::stoul(parts));
    const std::string& speculative = read.text("speculative");
    model.drafts = speculative != "off";
    if (model.drafts && speculative != "auto")
        model.draft_tokens = static_cast<std::uint32_t>(std::stoul(speculative));
    model.draft_folder = read.text("draft");
    model.caches_prefixes = read.on("prefix-cache");
    model.pages = {.keep = std::chrono::hours(read.count("kv-disk-hours")),
                   .key_file = read.text("kv-key-file")};
    if (const std::string& megabytes = read.text("kv-disk-mb"); megabytes != "auto")
        model.pages.bytes_max = std::stoull(megabytes) << 20;
    model.has_noise_prompts = read.on("noise-prompts");
    model.answers_any_model_name = read.on("any-model-name");
    model.gives_model = read.on("give-model");
    model.device_model_folder = read.text("device-model");
    return model;
}

AnswerMode answer_mode_of(std::string_view name) {
    if (name == "speculative") return AnswerMode::speculative;
    return name == "estimator" ? AnswerMode::estimator : AnswerMode::exact;
}

SpinMode spin_mode_of(std::string_view name) {
    if (name == "on") return SpinMode::on;
    return name == "off" ? SpinMode::off : SpinMode::automatic;
}

PrefetchSettings prefetch_of(const SettingReader& read) {
    const std::string& mode = read.text("prefetch");
    PrefetchSettings prefetch{.is_on = mode != "off",
                              .predictor = read.text("prefetch-by"),
                              .replayed_recall = read.text("prefetch-replay")};
    if (names_shadow(mode))
        prefetch.shadow_folder = parse_shadow_folder(mode).value();
    else if (mode != "off" && mode != "on")
        prefetch.experts_per_row = static_cast<std::uint32_t>(std::stoul(mode));
    return prefetch;
}

ContributorSettings contributors_of(const SettingReader& read, const ExpertRounding& rounding) {
    ContributorSettings out;
    out.backend = read.text("backend") == "local" ? ServeBackend::local : ServeBackend::swarm;
    out.has_local_fallback = read.on("local-fallback");
    out.own_layers = read.count("own-layers");
    out.uses_spans = read.text("spans") == "auto";
    out.use_workers = read.text("use-workers") == "always" ? UseWorkers::always
                                                           : UseWorkers::automatic;
    out.checks_answers = read.on("check-answers");
    out.replicas = read.count("replicas");
    out.hot_percent = read.count("hot-copies");
    out.placement = parse_placement(read.text("placement")).value();
    out.hedge = parse_hedge_policy(read.text("hedge")).value();
    out.experts = answer_mode_of(read.text("experts"));
    out.late_calls_max = read.count("late-calls-max");
    out.prefetch = prefetch_of(read);
    out.wire = {.rounding = rounding,
                .x_is_int8 = read.text("wire-x") == "int8",
                .queue_depth = read.count("queue-depth"),
                .lz4 = read.on("lz4")};
    out.waits = {.attempt_max = std::chrono::milliseconds(read.count("timeout-ms")),
                 .round_deadline = read.seconds("round-deadline-s"),
                 .holder = read.seconds("holder-wait-s"),
                 .unseen_holder = read.seconds("holder-wait-unseen-s"),
                 .spin = spin_mode_of(read.text("spin"))};
    out.workers_per_address_max = read.count("workers-per-address");
    return out;
}

Status check_address_settings(const AddressSettings& address, std::string_view listen) {
    const bool has_certificate = !address.tls_cert.empty();
    if (has_certificate == address.tls_key.empty())
        return Error{ErrorCode::invalid_argument,
                     text("--tls-cert and --tls-key need each other, found ",
                          has_certificate ? "--tls-cert" : "--tls-key", " alone")};
    if (!net::is_loopback_address(address.listen.address) && !has_certificate &&
        !address.allows_insecure_http)
        return Error{ErrorCode::invalid_argument,
                     text("--listen ", listen,
                          " is open to other machines: give --tls-cert and --tls-key (moex-hub "
                          "cert makes them), or --insecure-http behind a proxy that speaks TLS")};
    return {};
}

Status check_contributor_settings(const ContributorSettings& contributors) {
    if (contributors.backend == ServeBackend::swarm) return {};
    if (!contributors.has_local_fallback)
        return Error{ErrorCode::invalid_argument,
                     "--backend local computes on this machine, and --local-fallback off forbids "
                     "that: leave one of them out"};
    if (!contributors.prefetch.shadow_folder.empty())
        return Error{ErrorCode::invalid_argument,
                     "--prefetch shadow:DIR predicts what workers load next, and --backend local "
                     "uses no workers: leave one of them out"};
    return {};
}

}  // namespace

const char* serve_backend_name(ServeBackend backend) {
    return backend == ServeBackend::swarm ? "swarm" : "local";
}

const char* answer_mode_name(AnswerMode mode) {
    switch (mode) {
        case AnswerMode::exact: return "exact";
        case AnswerMode::speculative: return "speculative";
        case AnswerMode::estimator: return "estimator";
    }
    return "?";
}

Result<ServeSettings> read_serve_settings(const Settings& settings) {
    const SettingReader read(settings);
    ServeSettings out{.address = address_of(read),
                      .model = model_of(read),
                      .contributors = contributors_of(read, rounding_of(settings)),
                      .logs = {.is_json = read.on("log-json"),
                               .access_log = read.text("access-log"),
                               .trace = read.text("trace")}};
    MOEX_TRY(check_address_settings(out.address, read.text("listen")));
    MOEX_TRY(check_contributor_settings(out.contributors));
    return out;
}

}  // namespace moex
