#include "hub/net/routes/status.h"

#include <ctime>

#include "hub/base/clock.h"
#include "hub/net/health_watch.h"

namespace moex::net {
namespace {

using nlohmann::json;

json model_json(const HubContext& hub) {
    const ModelConfig& config = hub.package->config();
    std::uint32_t num_moe_layers = 0;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        num_moe_layers += config.is_moe(layer);

    return {{"name", hub.package->name()},
            {"num_layers", config.num_layers},
            {"num_moe_layers", num_moe_layers},
            {"num_experts", config.num_experts},
            {"top_k", config.top_k},
            {"hidden_size", config.hidden_size},
            {"context_tokens", config.context_tokens},
            {"expert_dtype", expert_dtype_name(hub.package->expert_dtype())},
            {"expert_blob_bytes", hub.package->expert_blob_bytes()}};
}

json options_json(const SwarmOptions& options, const std::string& hints_by) {
    return {{"local_fallback", options.local_fallback},
            {"use_workers", options.use_workers == UseWorkers::always ? "always" : "auto"},
            {"hedge", hedge_policy_text(options.hedge)},
            {"replicas", options.replicas},
            {"hot_copies", options.hot.copies_max},
            {"placement", placement_text(options.placement)},
            {"deterministic", options.rounding.deterministic},
            {"checks", options.checks.judge},
            {"hints_by", hints_by}};
}

json coverage_json(const Coverage& coverage) {
    return {{"units", coverage.units},
            {"covered", coverage.covered},
            {"replicas_min", coverage.replicas_min},
            {"replicas_mean", coverage.replicas_mean},
            {"away", coverage.away},
            {"extra", coverage.extra}};
}

// Returns [[..num_experts..], ..per layer..], the number of replicas of each expert; [] for dense
// layers, and for those whose experts the hub computes alone.
json replicas_json(const ModelConfig& config, const std::vector<std::uint8_t>& layer_is_moe,
                   const std::vector<std::uint16_t>& replicas) {
    json rows = json::array();
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        json row = json::array();
        const std::uint32_t num_experts = layer_is_moe[layer] != 0 ? config.num_experts : 0;
        for (std::uint32_t expert = 0; expert < num_experts; ++expert) {
            const std::size_t unit = std::size_t{layer} * config.num_experts + expert;
            row.push_back(unit < replicas.size() ? replicas[unit] : 0);
        }
        rows.push_back(std::move(row));
    }
    return rows;
}

// Returns one text per layer with a letter for each expert; "" for layers as above.
json tiers_json(const ModelConfig& config, const std::vector<std::uint8_t>& layer_is_moe,
                const std::vector<std::optional<UnitTier>>& tiers) {
    static constexpr char letters[num_unit_tiers] = {'d', 'm', 's'};  // disk, memory, slot
    json rows = json::array();
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        std::string row(layer_is_moe[layer] != 0 ? config.num_experts : 0, '-');
        for (std::size_t expert = 0; expert < row.size(); ++expert) {
            const std::size_t unit = std::size_t{layer} * config.num_experts + expert;
            if (unit < tiers.size() && tiers[unit])
                row[expert] = letters[static_cast<std::size_t>(*tiers[unit])];
        }
        rows.push_back(std::move(row));
    }
    return rows;
}

json step_split_json(const StepSplit& split) {
    const auto seconds = [](Duration time) { return std::chrono::duration<double>(time).count(); };
    return {{"steps", split.steps},
            {"layers_s", seconds(split.layers)},
            {"waiting_s", seconds(split.waiting)},
            {"head_s", seconds(split.head)},
            {"drawing_s", seconds(split.drawing)}};
}

json kv_disk_json(const PageStoreCounters& disk) {
    return {{"on", disk.is_on},
            {"listed", disk.is_listed},
            {"pages", disk.pages},
            {"bytes", disk.bytes},
            {"bytes_max", disk.bytes_max},
            {"keep_s", disk.keep_s},
            {"pages_written", disk.pages_written},
            {"pages_read", disk.pages_read},
            {"pages_evicted", disk.pages_evicted},
            {"pages_refused", disk.pages_refused},
            {"writes_failed", disk.writes_failed}};
}

json memory_json(const KvMemory& memory, std::uint64_t draft_bytes) {
    return {{"pages", memory.pages},
            {"states", memory.states},
            {"spare_states", memory.spare_states},
            {"state_copies", memory.state_copies},
            {"drafts", draft_bytes}};
}

json engine_json(const HubContext& hub) {
    const EngineCounters engine = hub.engine ? hub.engine.load()->counters() : EngineCounters{};
    return {{"running", engine.running},
            {"waiting", engine.waiting},
            {"running_max", engine.running_max},
            {"steps", engine.steps},
            {"steps_multi_sequence", engine.steps_multi_sequence},
            {"steps_stopped", engine.steps_stopped},
            {"steps_micro_batched", engine.steps_micro_batched},
            {"micro_batches", engine.micro_batches},
            {"steps_s", std::chrono::duration<double>(engine.step_time).count()},
            {"experts_waited_s", std::chrono::duration<double>(engine.experts_waited).count()},
            {"split", step_split_json(engine.split)},
            {"preempted", engine.preempted},
            {"drafts", engine.drafts},
            {"drafted_tokens", engine.drafted_tokens},
            {"accepted_tokens", engine.accepted_tokens},
            {"rows", engine.rows},
            {"prompt_tokens", engine.prompt_tokens},
            {"cached_tokens", engine.cached_tokens},
            {"cached_tokens_disk", engine.cached_tokens_disk},
            {"kv_disk", kv_disk_json(engine.page_store)},
            {"generated_tokens", engine.generated_tokens},
            {"kv_pages_used", engine.kv_pages_used},
            {"kv_pages_cached", engine.kv_pages_cached},
            {"kv_pages", engine.kv_pages},
            {"memory", memory_json(engine.memory, engine.draft_bytes)},
            {"memory_max", memory_json(engine.memory_max, engine.draft_bytes_max)},
            {"decode_tokens_per_s", hub.decode_tokens_per_s.load()}};
}

json split_json(const RoundSplit& split) {
    return {{"groups", split.groups},
            {"group_ms", split.group_ms},
            {"worker_ms", split.worker_ms},
            {"gpu_ms", split.gpu_ms}};
}

json speed_json(const SpeedProfile& speed) {
    return {{"hidden_size", speed.hidden_size},
            {"moe_intermediate_size", speed.moe_intermediate_size},
            {"expert_ns", speed.expert_ns},
            {"read_mb_s", speed.read_mb_s}};
}

// Returns the figures of a worker's expert slots. Times are means: lead_ms over hits that a hint
// had predicted, load_ms over loads.
json slots_json(const SlotFigures& figures, std::uint64_t blob_bytes) {
    const auto mean_ms = [](std::uint64_t us, std::uint64_t count) {
        return count == 0 ? 0.0 : 1e-3 * static_cast<double>(us) / static_cast<double>(count);
    };
    return {{"asked", figures.asked},
            {"hits", figures.hits},
            {"late", figures.late},
            {"misses", figures.misses()},
            {"foreseen", figures.foreseen},
            {"lead_ms", mean_ms(figures.lead_us, figures.foreseen)},
            {"loads", figures.loads},
            {"load_ms", mean_ms(figures.load_us, figures.loads)},
            {"brought_bytes", figures.brought * blob_bytes},
            {"wasted_bytes", figures.wasted * blob_bytes},
            {"expired", figures.expired}};
}

// Returns the time in which the experts of a layer can be loaded without delay, and the time that
// groups waited for loads.
json load_window_json(const LoadWindow& window) {
    return {{"groups", window.groups},
            {"hub_ms", window.hub_ms},
            {"worker_ms", window.worker_ms},
            {"trip_ms", window.trip_ms},
            {"most_ms", window.most_ms()}};
}

json calls_json(const SwarmCounters& calls, std::uint64_t blob_bytes) {
    return {{"rounds", calls.rounds},
            {"rounds_failed", calls.rounds_failed},
            {"calls", calls.calls},
            {"remote", calls.calls_remote},
            {"local", calls.calls_local},
            {"groups_sent", calls.groups_sent},
            {"replaced", calls.pairs_late},
            {"extras_given", calls.extras_given},
            {"extras_taken", calls.extras_taken},
            {"groups_answered", calls.groups_answered},
            {"hedges_sent", calls.hedges_sent},
            {"probes_sent", calls.probes_sent},
            {"hedges_won", calls.hedges_won},
            {"redispatched", calls.redispatched},
            {"timeouts", calls.timeouts},
            {"hints_sent", calls.hints_sent},
            {"on_demand", slots_json(calls.slots, blob_bytes)},
            {"load_window", load_window_json(calls.load_window)},
            {"late", calls.late},
            {"bad_answers", calls.bad_answers},
            {"lies", calls.lies},
            {"bans", calls.bans},
            {"rows_checked", calls.rows_right + calls.rows_wrong},
            {"residual_max", calls.residual_max},
            {"pairs_verified", calls.pairs_verified},
            {"pairs_proven", calls.pairs_proven},
            {"pairs_unchecked", calls.pairs_unchecked},
            {"bad_frames", calls.bad_frames},
            {"bytes_sent", calls.bytes_sent},
            {"bytes_received", calls.bytes_received},
            {"frames_sent", calls.frames_sent},
            {"frames_received", calls.frames_received},
            {"in_flight", calls.in_flight},
            {"p50_ms", calls.group_p50_ms},
            {"p99_ms", calls.group_p99_ms},
            {"split", split_json(calls.split)}};
}

// The JSON omits the worker's address, which is private.
json worker_json(const WorkerView& worker, std::uint64_t blob_bytes, TimePoint now) {
    return {{"id", worker.id},
            {"state", worker_state_name(worker.state)},
            {"nickname", worker.nickname},
            {"client", worker.client},
            {"backend", worker.device.backend},
            {"vendor", worker.device.vendor},
            {"description", worker.device.description},
            {"software", worker.device.software},
            {"arithmetic", worker_arithmetic_name(worker.arithmetic)},
            {"published_peer", worker.published_peer},
            {"power", worker.power},
            {"drained", worker.drained},
            {"pinned", worker.pinned},
            {"has_key", !worker.worker_key.empty()},
            {"units_assigned", worker.units_assigned},
            {"units_ready", worker.units_ready},
            {"in_flight", worker.in_flight},
            {"groups_sent", worker.groups_sent},
            {"groups_answered", worker.groups_answered},
            {"pairs_answered", worker.pairs_answered},
            {"timeouts", worker.timeouts},
            {"errors", worker.errors},
            {"bad_answers", worker.bad_answers},
            {"trust", trust_name(worker.trust)},
            {"check_rate", worker.check_rate},
            {"pairs_credited", worker.pairs_credited},
            {"bytes_sent", worker.bytes_sent},
            {"bytes_received", worker.bytes_received},
            {"p50_ms", worker.latency_p50_ms},
            {"p99_ms", worker.latency_p99_ms},
            {"split", split_json(worker.split)},
            {"speed", speed_json(worker.speed)},
            {"slots", worker.slots.slots},
            {"on_demand", slots_json(worker.slots, blob_bytes)},
            {"ready_in",
             {{"store", worker.tiers[0]}, {"memory", worker.tiers[1]}, {"slot", worker.tiers[2]}}},
            {"slot_bytes", worker.device.slot_bytes},
            {"store_bytes", worker.device.store_bytes},
            {"connected_s", std::chrono::duration<double>(now - worker.joined_at).count()}};
}

json host_json(const HostState& host) {
    const auto now_s = static_cast<std::int64_t>(std::time(nullptr));
    const json left_s = host.certificate_end_s == 0 ? json() : json(host.certificate_end_s - now_s);
    return {{"certificate_left_s", left_s},
            {"state_free_bytes", host.state_free_bytes},
            {"state_is_full", is_disk_full(host)}};
}

}  // namespace

json health_json(const Health& health, std::uint32_t prompts_kept_hours) {
    json out{{"status", health_name(health.state)}};
    if (health.state == HealthState::loading || health.state == HealthState::draining) return out;
    out["units"] = health.units;
    out["covered"] = health.covered;
    if (health.returning > 0) out["returning"] = health.returning;
    out["workers"] = health.active_workers;
    if (!health.reason.empty()) out["reason"] = health.reason;
    if (prompts_kept_hours > 0) out["prompts_kept_hours"] = prompts_kept_hours;
    return out;
}

MetricsSnapshot metrics_snapshot(const HubContext& hub) {
    MetricsSnapshot snapshot;
    if (Engine* engine = hub.engine) snapshot.engine = engine->counters();
    if (SwarmBackend* swarm = hub.swarm) {
        const SwarmCore& core = swarm->core();
        snapshot.swarm = core.counters();
        snapshot.coverage = core.coverage();
        snapshot.workers = core.workers();

        const std::vector<std::uint16_t> replicas = core.replicas();
        const ModelConfig& config = hub.package->config();
        for (std::size_t unit = 0; unit < replicas.size(); ++unit)
            if (core.options().layer_is_moe[unit / config.num_experts] != 0)
                snapshot.replicas.push_back(replicas[unit]);
    }
    snapshot.requests_refused = hub.requests_refused;
    snapshot.host = hub.host.read();
    snapshot.fleet = hub.registry.fleet();
    snapshot.store_is_away = hub.registry.store_is_away();
    snapshot.uptime_s = std::chrono::duration<double>(now_steady() - hub.started).count();
    return snapshot;
}

// The hubs of the shared store, as of the last renewal of this hub's lease.
json fleet_json(const FleetView& fleet) {
    json hubs = json::array();
    for (const Member& hub : fleet.members)
        hubs.push_back({{"hub", hub.hub_id},
                        {"is_this", hub.hub_id == fleet.self.hub_id},
                        {"lives", hub.left_ms > 0},
                        {"lease_ms", hub.left_ms},
                        {"address", hub.address},
                        {"model", hub.model},
                        {"same_package", hub.package_sha256 == fleet.self.package_sha256},
                        {"version", hub.version},
                        {"streams", hub.streams},
                        {"workers", hub.workers},
                        {"units", hub.units},
                        {"units_missing", hub.missing},
                        {"units_thin", hub.thin}});
    return hubs;
}

json status_json(HubContext& hub, bool with_join_url) {
    const TimePoint now = now_steady();
    const SwarmCore& core = hub.swarm.load()->core();
    json out;
    out["version"] = MOEX_VERSION;
    out["uptime_s"] = std::chrono::duration<double>(now - hub.started).count();
    out["model"] = model_json(hub);
    out["options"] = options_json(core.options(), hub.options.hints_by);
    out["health"] = health_name(current_health(hub).state);
    out["coverage"] = coverage_json(core.coverage());
    const std::vector<std::uint8_t>& layer_is_moe = core.options().layer_is_moe;
    out["replicas"] = replicas_json(hub.package->config(), layer_is_moe, core.replicas());
    out["tiers"] = tiers_json(hub.package->config(), layer_is_moe, core.tiers());
    out["engine"] = engine_json(hub);
    out["host"] = host_json(hub.host.read());
    if (const auto fleet = hub.registry.fleet(); !fleet->members.empty())
        out["fleet"] = fleet_json(*fleet);
    const std::uint64_t blob_bytes = hub.package->expert_blob_bytes();
    out["calls"] = calls_json(core.counters(), blob_bytes);
    if (hub.options.describe_shadow) out["shadow"] = hub.options.describe_shadow();
    if (hub.layers.describe) out["spans"] = hub.layers.describe();

    json workers = json::array();
    for (const WorkerView& worker : core.workers())
        workers.push_back(worker_json(worker, blob_bytes, now));
    out["workers"] = std::move(workers);
    if (with_join_url)
        if (const auto url = hub.join_url(); url.ok()) out["join_url"] = *url;
    return out;
}

}  // namespace moex::net
