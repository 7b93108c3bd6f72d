#include "hub/commands/serve/hub_program.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "hub/base/log.h"
#include "hub/base/num_cores.h"
#include "hub/commands/command.h"
#include "hub/commands/progress.h"
#include "hub/commands/serve/kept_pages.h"
#include "hub/commands/serve/known_publishers.h"
#include "hub/commands/serve/open_files.h"
#include "hub/commands/serve/serve_options.h"
#include "hub/commands/serve/serve_places.h"
#include "hub/commands/serve/shadow_report.h"
#include "hub/engine/recurrent_state.h"
#include "hub/foresight/lossy/late_calls.h"

namespace moex {
namespace {

// Logs how often workers loaded experts on demand, and how much time the hub had to hide those
// loads behind other work.
void log_loads(const SwarmCounters& counts) {
    const SlotFigures& slots = counts.slots;
    const LoadWindow& window = counts.load_window;
    if (slots.asked == 0) return;
    const double waited_ms = slots.loads == 0 ? 0.0
                                              : 1e-3 * static_cast<double>(slots.load_us) /
                                                    static_cast<double>(slots.loads);
    log_info("dispatch: experts on demand", kv("asked", slots.asked), kv("hits", slots.hits),
             kv("late", slots.late), kv("load_ms", waited_ms), kv("load_ms_most", window.most_ms()),
             kv("groups", window.groups), kv("hub_ms", window.hub_ms),
             kv("worker_ms", window.worker_ms), kv("trip_ms", window.trip_ms));
}

std::optional<std::string> environment_value(const char* name) {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace

HubProgram::HubProgram(const Invocation& invocation, ServeSettings settings)
    : invocation_(invocation),
      settings_(std::move(settings)),
      in_force_(invocation.settings),
      server_options_(server_options_of(settings_)),
      started_at_(now_steady()),
      manager_(environment_value),
      stop_(manager_) {}

Status HubProgram::open() {
    MOEX_TRY(choose_user());
    MOEX_TRY(choose_state_directory());
    open_files_ = raise_open_files();
    {
        // Read all files as the user that will serve them. A file that this user may not read is
        // then an error now, and not at the first request.
        std::optional<ActingAs> acting;
        if (user_) acting.emplace(*user_);
        MOEX_ASSIGN(lock, StateLock::take(state_directory_));
        MOEX_TRY(load());
        MOEX_TRY(require_computers());
        MOEX_TRY(open_fleet_key());
        MOEX_TRY(open_registry(std::move(lock)));
        MOEX_TRY(open_pages());
        MOEX_TRY(open_signing_key());
        if (!settings_.logs.trace.empty()) {
            MOEX_ASSIGN(trace, Trace::open(settings_.logs.trace));
            trace_ = std::move(trace);
        }
    }

    net::ServerOptions options = within_limits(server_options_);
    if (options.connections_max < server_options_.connections_max)
        log_warn("hub: the limit of open files admits fewer connections than --connections-max",
                 kv("open_files", open_files_), kv("connections", options.connections_max),
                 kv("wanted", server_options_.connections_max),
                 kv("wants_open_files", open_files_for(server_options_.connections_max)));
    options.hints_by = hints_by_;
    options.signing_key = signing_key_;
    options.fleet_key = fleet_key_;
    options.device_package = device_package_;
    if (pages_)
        options.prompts_kept_hours = static_cast<std::uint32_t>(settings_.model.pages.keep /
                                                                std::chrono::hours(1));
    open_spans();
    if (shadow_parts_) options.describe_shadow = [this] { return shadow_json(); };
    options.on_reload = [this] { reload(); };
    options.describe_settings = [this] {
        const std::lock_guard lock(in_force_mutex_);
        nlohmann::json rows = describe_settings(in_force_);
        for (nlohmann::json& row : rows)
            if (row["name"] == "gpu") row["value"] = gpu_words();
        return rows;
    };
    server_.emplace(std::move(options), model_.package, *registry_);
    if (user_) become(*user_);  // root is needed no longer: the port is bound, the TLS key is read
    join_rooms();
    return {};
}

Status HubProgram::run() {
    log_ready();
    print_links();

    // Notify the service manager from the strand of the swarm, because the strand runs only once
    // connections are accepted.
    const auto post = [this](std::function<void()> function) {
        server_->swarm_host().post(std::move(function));
    };
    post([this] {
        manager_.tell(
            text("READY=1\nSTATUS=", model_.package->name(), " at ", server_->base_url()));
    });
    const LifeSigns life_signs(manager_, post);

    MOEX_TRY(join_fleet());
    stop_.attach(*server_);
    server_->run(settings_.address.limits.num_threads, spin_max());
    stop_.detach();
    if (fleet_) fleet_->stop();
    registry_->leave_fleet();
    if (swarm_) log_loads(swarm_->core().counters());
    if (shadow_) log_shadow(shadow_->counters());
    log_info("hub: stopped");
    const std::lock_guard lock(changed_mutex_);
    if (changed_bytes_) return *changed_bytes_;
    return {};
}

// Ends the hub after a file of the package got other bytes: running requests end with an error, and
// new ones are refused.
void HubProgram::on_changed_bytes(const Error& error) {
    log_error("hub: stopping, because a file of the package has other bytes than at the start",
              kv("error", error.message));
    {
        const std::lock_guard lock(changed_mutex_);
        if (!changed_bytes_) changed_bytes_ = error;
    }
    stop_.stop();
}

Status HubProgram::choose_user() {
    MOEX_ASSIGN(user, serving_user(settings_.address));
    user_ = std::move(user);
    if (!user_ && settings_.address.user.empty() && geteuid() == 0)
        log_warn("hub: runs as root; with --user NAME it becomes that user once the port is bound");
    return {};
}

Status HubProgram::choose_state_directory() {
    MOEX_ASSIGN(folder, serving_state_folder(settings_.address, user_));
    state_directory_ = std::move(folder);
    if (!user_) return {};
    return give_folder(state_directory_, *user_);
}

Status HubProgram::load() {
    StageBar stages;
    const auto show = [&](std::string_view stage) { stages.show(stage); };
    const bool wants_gpu = settings_.model.gpu.is_wanted();
    // Leave one eighth of the cores to the threads of connections. They would otherwise interrupt
    // compute threads, and one late compute thread delays all others. On 16 cores, a token with 12
    // compute threads takes 0.78 of its time with 16, and with 14 compute threads 0.87.
    constexpr double connections_share = 1.0 / 8;
    MOEX_ASSIGN(model, load_model(invocation_.settings, show,
                                  wants_gpu ? LoadParts::all_but_decoder : LoadParts::everything,
                                  connections_share));
    model_ = std::move(model);
    model_.package->on_changed_bytes([this](const Error& error) { on_changed_bytes(error); });
    if (wants_gpu) MOEX_TRY(open_gpu());
    if (!gpu_ && !model_.decoder) MOEX_TRY(load_decoder(model_, invocation_.settings, show));
    MOEX_TRY(open_lossy_modes());
    MOEX_TRY(open_late_calls());
    MOEX_TRY(open_drafts());
    MOEX_TRY(open_device_model());
    return open_hints();
}

// Opens the GPU of --gpu. With "auto" this machine's cores compute the steps if no GPU is found.
Status HubProgram::open_gpu() {
    const GpuSettings& wanted = settings_.model.gpu;
    GpuStepsOptions options;
    options.device = wanted.device;
    options.holds_experts = gpu_computes_experts();
    options.sequences_max = settings_.model.sequences_max;
    options.micro_batches_max = micro_batches_max(settings_);
    options.memory_bytes_max = wanted.memory_bytes_max;
    options.kv_bytes_max = settings_.model.kv_bytes_max;
    options.kv_dtype = model_.kv_dtype;
    options.state_bytes_max = settings_.model.state_bytes_max;
    options.keeps_states = settings_.model.caches_prefixes;
    options.stay_awake = wanted.stays_awake && !options.holds_experts;
    options.uses_spans = why_no_spans().empty();
    ProgressBar bar("to the GPU", false);
    options.progress = [&](std::uint64_t done, std::uint64_t all) { bar.show(done, all, ""); };
    options.cores = [this]() -> Result<StepDevice*> {
        MOEX_TRY(load_decoder(model_, invocation_.settings, [](std::string_view) {}));
        gpu_is_lost_ = true;
        // The cores have another arithmetic and another layout than the pages on disk.
        if (pages_) pages_->turn_off("the GPU was lost, and this machine's cores compute");
        if (taken_) taken_->turn_off();
        model_.decoder->foresee_with(hints_.get());
        model_.decoder->use_spans(swarm_->spans());
        return static_cast<StepDevice*>(model_.decoder.get());
    };
    auto gpu = open_gpu_steps(model_.package, *model_.threads, options);
    if (gpu.ok()) {
        gpu_ = std::move(*gpu);
        log_info(
            "hub: attention, routers and LM head on a GPU", kv("adapter", gpu_->adapter()),
            kv("weights_mb", gpu_->weight_bytes() >> 20), kv("kv_mb", gpu_->kv_bytes() >> 20),
            kv("experts",
               options.holds_experts ? "gpu" : serve_backend_name(settings_.contributors.backend)));
        return {};
    }
    const bool lacks_gpu = gpu.error().code == ErrorCode::unavailable,
               lacks_kernels = gpu.error().code == ErrorCode::unsupported;
    if (wanted.device != "auto" || !(lacks_gpu || lacks_kernels))
        return Error{gpu.error().code, text("--gpu ", wanted.device, ": ", gpu.error().message)};
    log_info("hub: this machine's cores compute the steps", kv("because", gpu.error().message));
    return {};
}

// Returns true if the GPU computes the experts. With --deterministic it does not, because the
// ExpertBackend rounds the rows.
bool HubProgram::gpu_computes_experts() const {
    return settings_.model.gpu.is_wanted() && !swarm_computes() &&
           !settings_.model.is_deterministic;
}

EngineOptions HubProgram::engine_options() const {
    EngineOptions options = engine_options_of(invocation_.settings, model_);
    options.sequences_max = settings_.model.sequences_max;
    options.queue_max = settings_.model.queue_max;
    options.prefix_cache = settings_.model.caches_prefixes;
    if (const std::uint64_t bytes = settings_.model.state_bytes_max; bytes > 0)
        options.state_bytes_max = bytes;
    options.step_stretch_max = settings_.model.step_stretch_max;
    options.micro_batches = settings_.model.micro_batches;
    options.micro_batches_max = micro_batches_max(settings_);
    options.noise_prompts = settings_.model.has_noise_prompts && !gpu_;
    if (!gpu_) return options;
    const KvCacheOptions pages = gpu_->kv_pages();
    options.page_tokens = pages.page_tokens;
    options.kv_dtype = pages.dtype;
    const KvCache probe(gpu_->config(), {pages.page_tokens, 0, pages.dtype});
    options.kv_bytes_max = pages.num_pages * probe.page_bytes() + gpu_->state_slots().all_bytes();
    return options;
}

// Checks that some machine can compute the experts. To compute them, this machine needs all expert
// blobs. Workers of the swarm may fetch blobs from another machine.
Status HubProgram::require_computers() const {
    const ModelPackage& package = *model_.package;
    const bool wants_workers = settings_.contributors.backend == ServeBackend::swarm;
    if (wants_workers && package.config().expert_shape(0).is_clamped())
        log_info("hub: experts have biases and a clamped SwiGLU; older workers are refused");
    if (wants_workers && package.expert_shape().is_mxfp4())
        log_info("hub: experts are in MXFP4; older workers are refused");
    const Status whole = package.require_all_blobs();
    MOEX_TRY(check_own_layers(settings_.contributors.own_layers, swarm_computes(), package));
    if (whole.ok()) return {};

    if (!swarm_computes())
        return Error{whole.error().code,
                     text(whole.error().message, "; --backend local computes on this machine")};

    // Do not warn an operator that has no blob at all and has switched off local fallback: only
    // workers are meant to compute.
    const bool holds_some = package.num_missing_blobs() < package.num_blobs();
    if (settings_.contributors.has_local_fallback || holds_some)
        log_warn(
            "hub: expert blobs are missing, so only workers compute, and this address has to "
            "serve /weights from elsewhere",
            kv("missing", package.num_missing_blobs()), kv("blobs", package.num_blobs()));
    return {};
}

Status HubProgram::open_registry(StateLock lock) {
    MOEX_ASSIGN(registry, Registry::open(
                              {.directory = state_directory_, .url = settings_.address.store_url}));
    registry_ = std::move(registry);
    registry_->keep(std::move(lock));
    MOEX_ASSIGN(made,
                prepare_keys(settings_.address.keys, *registry_, keys_required(server_options_)));
    made_keys_ = std::move(made);
    return {};
}

// Lowers the number of connections to what the limit of open files admits. Without this the hub
// would accept connections and then lack descriptors for its own files.
net::ServerOptions HubProgram::within_limits(net::ServerOptions options) const {
    options.connections_max = connections_within(options.connections_max, open_files_);
    return options;
}

Status HubProgram::open_pages() {
    engine_options_ = engine_options();
    MOEX_ASSIGN(pages, open_kept_pages(settings_, state_directory_, kept_pages_parts()));
    pages_ = std::move(pages);
    engine_options_.page_store = pages_.get();

    const auto source = handed_source(settings_, kept_pages_parts());
    const bool shares = engine_options_.prefix_cache && !engine_options_.noise_prompts;
    if (!source || !shares || !TakenPages::can_take(*source)) return {};
    // beside the memory of the engine's keys and values
    constexpr std::uint64_t share = 4, bytes_max = 1ull << 30;
    taken_ = std::make_unique<TakenPages>(
        TakenPagesOptions{.source = *source,
                          .bytes_max = std::min(bytes_max, engine_options_.kv_bytes_max / share),
                          .other = pages_.get()});
    engine_options_.page_store = taken_.get();
    return {};
}

KeptPagesParts HubProgram::kept_pages_parts() const {
    return {.model = model_,
            .engine = engine_options_,
            .on_gpu = gpu_ != nullptr,
            .has_whole_pages = gpu_ && gpu_->page_mover().num_window_slots == 0,
            .registry = *registry_};
}

// If the key cannot be read, the hub does not start: workers that know the key would refuse it.
Status HubProgram::open_signing_key() {
    MOEX_TRY(check_publisher(*model_.package, state_directory_));
    if (device_package_) MOEX_TRY(check_publisher(*device_package_, state_directory_));
    MOEX_ASSIGN(key, SigningKey::open(signing_key_file(state_directory_)));
    log_info("hub: signs with its key", kv("fingerprint", fingerprint_of(key.public_key())));
    signing_key_ = std::make_shared<const SigningKey>(std::move(key));
    return {};
}

void HubProgram::reload() {
    const auto refuse = [](const Error& error) {
        log_error("hub: SIGHUP changed no setting and no key", kv("error", error.message));
    };
    const auto fresh = invocation_.settings_again();
    if (!fresh.ok()) return refuse(fresh.error());
    const auto read = read_serve_settings(*fresh);
    if (!read.ok()) return refuse(read.error());
    if (const Status kept = keep_host_keys(read->address.keys, *registry_); !kept.ok())
        return refuse(kept.error());

    std::string changed, waiting;
    const std::lock_guard lock(in_force_mutex_);
    for (const Setting& setting : setting_table()) {
        if (!(setting.commands & command_serve) || in_force_.equal(setting.name, *fresh)) continue;
        const bool is_live = changes_while_serving(setting.name);
        std::string& names = is_live ? changed : waiting;
        names += text(names.empty() ? "" : ",", setting.name);
        if (is_live) in_force_.take(setting.name, *fresh);
    }
    set_log_of(in_force_);
    // value() cannot fail: the settings that SIGHUP may change never contradict other settings.
    server_->change(within_limits(server_options_of(read_serve_settings(in_force_).value())));
    log_info("hub: keys and settings read again", kv("changed", changed.empty() ? "-" : changed));
    if (!waiting.empty())
        log_warn("hub: these settings wait for a restart", kv("settings", waiting));
}

// Returns how long threads poll before they sleep. A hub that computes on its CPU cores does not
// poll, because it has no core to spare.
Duration HubProgram::spin_max() const {
    constexpr unsigned cores_min = 8;
    constexpr Duration most = std::chrono::milliseconds(1);
    const SpinMode mode = settings_.contributors.waits.spin;
    const bool pays_off = gpu_ && swarm_computes() && num_cores() >= cores_min;
    const bool spins = mode == SpinMode::on || (mode == SpinMode::automatic && pays_off);
    return spins ? most : Duration{};
}

ExpertBackend& HubProgram::experts() {
    if (own_layers_) return *own_layers_;
    if (late_calls_) return *late_calls_;
    if (swarm_computes()) return *swarm_;
    return *model_.local;
}

// Loads the default vectors, which substitute expert answers that a request does not wait for.
// Loads nothing if every request waits for all answers.
Status HubProgram::open_late_calls() {
    if (settings_.contributors.late_calls_max == 0) return {};
    const auto refuse = [](std::string_view why) {
        return Error{ErrorCode::invalid_argument, text("--late-calls-max: ", why)};
    };
    if (settings_.model.is_deterministic)
        return refuse("--deterministic promises the model's own answers.");
    if (gpu_) return refuse("the hub's steps run on a GPU (--gpu).");
    if (!swarm_computes()) return refuse("no worker computes experts, so no answer is late.");
    auto profile = load_expert_profile(*model_.package);
    if (!profile.ok() && profile.error().code == ErrorCode::not_found)
        return refuse(
            "the package has no default vectors; `moex-hub pack --calibrate` makes them.");
    if (!profile.ok()) return profile.error();
    default_vectors_ = std::make_shared<const ExpertProfile>(*std::move(profile));
    return {};
}

// The keys and values of a GPU are in its own memory. What sources of drafts keep is in the hub's,
// beside them.
void HubProgram::add_memory_of_drafts() {
    const std::uint64_t tokens = std::uint64_t{gpu_->kv_pages().num_pages} *
                                 engine_options_.page_tokens,
                        copies = gpu_->state_slots().copies_max;
    for (const DraftSource* source : engine_options_.draft_sources) {
        const DraftMemory memory = source->memory_max();
        engine_options_.kv_bytes_max += memory.sequence_bytes * engine_options_.sequences_max +
                                        memory.token_bytes * tokens +
                                        copies * source->kept_bytes_max();
    }
}

// Lets contributors compute layers whole.
void HubProgram::use_spans(SpanClient* spans) {
    if (gpu_)
        gpu_->use_spans(spans);
    else
        model_.decoder->use_spans(spans);
    engine_options_.sequence_ended = [spans](std::uint64_t id) { spans->ended(id); };
    engine_options_.sequence_kept = [spans](std::uint64_t id) { spans->kept(id); };
    engine_options_.sequence_resumed = [spans](std::uint64_t id, std::uint32_t num_tokens) {
        spans->resumed(id, num_tokens);
    };
    engine_options_.rested = [spans] { spans->forget_ended(); };
}

void HubProgram::join_rooms() {
    SwarmOptions swarm_options = swarm_options_of(settings_, model_.package, *registry_);
    swarm_options.closed_for = [this](std::string_view worker_key) -> Duration {
        return std::chrono::seconds(registry_->bans().left_s(worker_key, std::time(nullptr)));
    };
    swarm_options.spin_max = spin_max();
    if (span_layers_) {
        const ModelConfig& config = model_.package->config();
        swarm_options.spans.on = true;
        swarm_options.spans.layer_of = [this](std::uint32_t layer) {
            return span_layers_->layer(layer);
        };
        swarm_options.spans.has_weights = has_weights_for_checks();
        swarm_options.spans.layer_version = span_layers_->version();
        swarm_options.spans.kv_size = config.num_kv_heads * config.head_dim;
        if (config.has_delta_net()) {
            for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
                swarm_options.spans.layer_is_delta.push_back(!config.has_keys(layer));
            const RecurrentShape shape = RecurrentShape::of(config);
            const std::size_t keys = std::size_t{shape.delta.key_heads} * shape.delta.key_dim,
                              heads = shape.delta.value_heads,
                              values = heads * shape.delta.value_dim;
            swarm_options.spans.delta_row_parts = {keys, keys, values, heads, heads};
            swarm_options.spans.state_floats = shape.snapshot_floats_of_layer();
        }
        swarm_options.spans.context_tokens = std::min(config.context_tokens, 32768u);
        if (model_.arithmetic == Arithmetic::exact) swarm_options.spans.tolerance = 0.2;
    }
    swarm_.emplace(std::move(swarm_options), server_->swarm_host(), model_.local.get(),
                   [this](const WorkerEvent& event) { on_worker_event(event); });

    if (settings_.model.drafts) {
        engine_options_.draft_sources = only_drafts_ ? std::vector<DraftSource*>{only_drafts_}
                                                     : drafts_.make_sources(engine_options_);
        engine_options_.draft_tokens = settings_.model.draft_tokens;
        if (gpu_) add_memory_of_drafts();
        log_info("hub: drafts tokens", kv("by", drafts_.words()));
    }
    start_shadow();
    if (default_vectors_) late_calls_ = make_late_calls(*swarm_, default_vectors_);
    open_own_layers();
    StepDevice& device = gpu_ ? static_cast<StepDevice&>(*gpu_) : *model_.decoder;
    if (SpanClient* const spans = swarm_->spans()) use_spans(spans);
    steps_.emplace(device, model_.package);
    engine_.emplace(*steps_, experts(), engine_options_);

    ApiOptions api_options;
    api_options.default_max_tokens = settings_.model.default_max_tokens;
    api_options.context_tokens = settings_.model.context_tokens;
    offer_lossy_modes(api_options);
    api_options.late_calls_max = settings_.contributors.late_calls_max;
    api_options.drafts = settings_.model.drafts;
    api_options.kv_source = handed_source(settings_, kept_pages_parts());
    api_options.taken = taken_.get();
    api_options.any_model_name = settings_.model.answers_any_model_name;
    offer_streams(api_options);
    api_.emplace(model_.package, model_.tokenizer, model_.chat_template, *engine_, api_options,
                 server_->api_observer());
    server_->attach(*swarm_, *engine_, *api_);
    if (span_layers_)
        server_->give_layers(
            {.find = [this](const Sha256& hash) { return span_layers_->find(hash); },
             .describe = [this] { return spans_json(); }});
    pack_experts();
}

void HubProgram::offer_lossy_modes(ApiOptions& options) {
    const AnswerMode mode = settings_.contributors.experts;
    options.experts = answer_mode_name(mode);
    options.no_modes = no_lossy_modes_;
    if (!lossy_modes_) return;

    options.find_mode = [this](std::string_view name) { return lossy_modes_->find(name); };
    options.modes = lossy_modes_->offered();
    if (mode == AnswerMode::estimator) {
        options.experts = lossy_modes_->find(options.experts).value().name;
        if (std::find(options.modes.begin(), options.modes.end(), options.experts) ==
            options.modes.end())
            options.modes.push_back(options.experts);
    }
    // A package may have measured modes that are not served any more: these are not listed.
    for (const auto& [name, perplexity] : lossy_modes_->losses().perplexity)
        if (name == "exact" ||
            std::find(options.modes.begin(), options.modes.end(), name) != options.modes.end())
            options.perplexity[name] = perplexity;
    const auto usual = options.perplexity.find(std::string(early_calls_mode));
    if (usual != options.perplexity.end()) options.perplexity["speculative"] = usual->second;
}

}  // namespace moex
