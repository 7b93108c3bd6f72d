#include "hub/net/status.h"

#include "hub/base/clock.h"

namespace moex::net {

nlohmann::json health_json(const HubContext& hub, unsigned& http_status) {
    SwarmBackend* swarm = hub.swarm;
    http_status = 503;
    if (hub.draining) return {{"status", "draining"}};
    if (!swarm) return {{"status", "loading"}};
    const Coverage coverage = swarm->core().coverage();
    const bool ok = coverage.covered >= coverage.units;
    if (ok) http_status = 200;
    std::uint32_t active = 0;
    for (const WorkerView& worker : swarm->core().workers())
        active += worker.state == WorkerState::active ? 1 : 0;
    return {{"status", ok ? "ok" : "uncovered"},
            {"units", coverage.units},
            {"covered", coverage.covered},
            {"workers", active}};
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
        for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
            if (config.is_moe(layer))
                for (std::uint32_t expert = 0; expert < config.num_experts; ++expert) {
                    const std::size_t unit = std::size_t{layer} * config.num_experts + expert;
                    if (unit < replicas.size()) snapshot.replicas.push_back(replicas[unit]);
                }
    }
    snapshot.requests_refused = hub.requests_refused;
    snapshot.uptime_s = std::chrono::duration<double>(now_steady() - hub.started).count();
    return snapshot;
}

nlohmann::json status_json(HubContext& hub, bool with_join_url) {
    using nlohmann::json;
    SwarmBackend& swarm = *hub.swarm;
    SwarmCore& core = swarm.core();
    const TimePoint now = now_steady();
    const ModelConfig& config = hub.package->config();
    const SwarmOptions& options = core.options();
    std::uint32_t num_moe_layers = 0;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        num_moe_layers += config.is_moe(layer);

    json out;
    out["version"] = MOEX_VERSION;
    out["uptime_s"] = std::chrono::duration<double>(now - hub.started).count();
    out["model"] = {{"name", hub.package->name()},
                    {"num_layers", config.num_layers},
                    {"num_moe_layers", num_moe_layers},
                    {"num_experts", config.num_experts},
                    {"top_k", config.top_k},
                    {"hidden_size", config.hidden_size},
                    {"context_tokens", config.context_tokens},
                    {"expert_dtype", expert_dtype_name(hub.package->expert_dtype())},
                    {"expert_blob_bytes", hub.package->expert_blob_bytes()}};
    out["options"] = {{"local_fallback", options.local_fallback},
                      {"hedge", hedge_policy_text(options.hedge)},
                      {"replicas", options.replicas},
                      {"deterministic", options.rounding.deterministic}};
    const Coverage coverage = core.coverage();
    out["health"] = hub.draining                         ? "draining"
                    : coverage.covered >= coverage.units ? "ok"
                                                         : "uncovered";
    out["coverage"] = {{"units", coverage.units},
                       {"covered", coverage.covered},
                       {"replicas_min", coverage.replicas_min},
                       {"replicas_mean", coverage.replicas_mean}};

    const std::vector<std::uint16_t> replicas = core.replicas();
    json rows = json::array();
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        json row = json::array();
        for (std::uint32_t expert = 0; config.is_moe(layer) && expert < config.num_experts;
             ++expert) {
            const std::size_t unit = std::size_t{layer} * config.num_experts + expert;
            row.push_back(unit < replicas.size() ? replicas[unit] : 0);
        }
        rows.push_back(std::move(row));
    }
    out["replicas"] = std::move(rows);

    const EngineCounters engine = hub.engine ? hub.engine.load()->counters() : EngineCounters{};
    out["engine"] = {{"running", engine.running},
                     {"waiting", engine.waiting},
                     {"running_max", engine.running_max},
                     {"steps", engine.steps},
                     {"steps_multi_sequence", engine.steps_multi_sequence},
                     {"steps_stopped", engine.steps_stopped},
                     {"preempted", engine.preempted},
                     {"rows", engine.rows},
                     {"prompt_tokens", engine.prompt_tokens},
                     {"generated_tokens", engine.generated_tokens},
                     {"kv_pages_used", engine.kv_pages_used},
                     {"kv_pages", engine.kv_pages},
                     {"decode_tokens_per_s", hub.decode_tokens_per_s.load()}};
    const SwarmCounters calls = core.counters();
    out["calls"] = {{"rounds", calls.rounds},
                    {"rounds_failed", calls.rounds_failed},
                    {"calls", calls.calls},
                    {"remote", calls.calls_remote},
                    {"local", calls.calls_local},
                    {"groups_sent", calls.groups_sent},
                    {"groups_answered", calls.groups_answered},
                    {"hedges_sent", calls.hedges_sent},
                    {"hedges_won", calls.hedges_won},
                    {"redispatched", calls.redispatched},
                    {"timeouts", calls.timeouts},
                    {"late", calls.late},
                    {"bad_answers", calls.bad_answers},
                    {"bad_frames", calls.bad_frames},
                    {"bytes_sent", calls.bytes_sent},
                    {"bytes_received", calls.bytes_received},
                    {"frames_sent", calls.frames_sent},
                    {"frames_received", calls.frames_received},
                    {"in_flight", calls.in_flight},
                    {"p50_ms", calls.group_p50_ms},
                    {"p99_ms", calls.group_p99_ms}};
    json workers = json::array();
    // addresses stay here: they are nobody else's business
    for (const WorkerView& worker : core.workers())
        workers.push_back(
            {{"id", worker.id},
             {"state", worker_state_name(worker.state)},
             {"nickname", worker.nickname},
             {"client", worker.client},
             {"backend", worker.device.backend},
             {"vendor", worker.device.vendor},
             {"description", worker.device.description},
             {"software", worker.device.software},
             {"published_peer", worker.published_peer},
             {"units_assigned", worker.units_assigned},
             {"units_ready", worker.units_ready},
             {"in_flight", worker.in_flight},
             {"groups_sent", worker.groups_sent},
             {"groups_answered", worker.groups_answered},
             {"pairs_answered", worker.pairs_answered},
             {"timeouts", worker.timeouts},
             {"errors", worker.errors},
             {"bad_answers", worker.bad_answers},
             {"bytes_sent", worker.bytes_sent},
             {"bytes_received", worker.bytes_received},
             {"p50_ms", worker.latency_p50_ms},
             {"p99_ms", worker.latency_p99_ms},
             {"connected_s", std::chrono::duration<double>(now - worker.joined_at).count()}});
    out["workers"] = std::move(workers);
    if (with_join_url) out["join_url"] = hub.join_url;
    return out;
}

}  // namespace moex::net
