#include "hub/net/health/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>

#include "hub/dispatch/swarm_types.h"
#include "protocol/text.h"

namespace moex::net {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const prometheus::Histogram::BucketBoundaries request_seconds{
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
const prometheus::Histogram::BucketBoundaries token_seconds{0.001, 0.0025, 0.005, 0.01, 0.02, 0.05,
                                                            0.1,   0.2,    0.5,   1,    2.5};

struct Labelled {
    std::vector<ClientMetric::Label> labels;
    double value = 0;
};
MetricFamily family(const char* name, const char* help, MetricType type,
                    const std::vector<Labelled>& rows) {
    MetricFamily out;
    out.name = name;
    out.help = help;
    out.type = type;
    for (const Labelled& row : rows) {
        ClientMetric metric;
        metric.label = row.labels;
        if (type == MetricType::Counter)
            metric.counter.value = row.value;
        else
            metric.gauge.value = row.value;
        out.metric.push_back(std::move(metric));
    }
    return out;
}

// Collects the metric families of one /metrics answer, in the order of its text.
class Families {
  public:
    explicit Families(std::vector<MetricFamily>& out) : out_(out) {}
    template <class Number>
    void gauge(const char* name, const char* help, Number value) {
        gauges(name, help, {{{}, static_cast<double>(value)}});
    }
    void gauges(const char* name, const char* help, const std::vector<Labelled>& rows) {
        out_.push_back(family(name, help, MetricType::Gauge, rows));
    }
    template <class Number>
    void counter(const char* name, const char* help, Number value) {
        counters(name, help, {{{}, static_cast<double>(value)}});
    }
    void counters(const char* name, const char* help, const std::vector<Labelled>& rows) {
        out_.push_back(family(name, help, MetricType::Counter, rows));
    }

  private:
    std::vector<MetricFamily>& out_;
};

// Makes the label of a metric from its name and value.
Labelled labelled(const char* label, const char* value, double number) {
    return {{{label, value}}, number};
}

double number(std::uint64_t value) { return static_cast<double>(value); }

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

void add_memory(Families& out, const EngineCounters& engine) {
    const KvMemory &now = engine.memory, &most = engine.memory_max;
    out.gauges("moex_kv_memory_bytes", "Memory of texts, by what it is for.",
               {labelled("part", "pages", number(now.pages)),
                labelled("part", "states", number(now.states)),
                labelled("part", "spare_states", number(now.spare_states)),
                labelled("part", "state_copies", number(now.state_copies)),
                labelled("part", "drafts", number(engine.draft_bytes))});
    out.gauges("moex_kv_memory_bytes_max", "Most memory of texts; states include spare ones.",
               {labelled("part", "pages", number(most.pages)),
                labelled("part", "states", number(most.states)),
                labelled("part", "state_copies", number(most.state_copies)),
                labelled("part", "drafts", number(engine.draft_bytes_max))});
}

void add_engine(Families& out, const EngineCounters& engine) {
    out.gauge("moex_num_requests_running", "Sequences in the batch.", engine.running);
    out.gauge("moex_num_requests_waiting", "Sequences in the queue.", engine.waiting);
    out.gauge("moex_kv_pages", "Pages of the KV cache.", engine.kv_pages);
    out.gauge("moex_kv_pages_used", "Pages of the KV cache in use.", engine.kv_pages_used);
    out.gauge("moex_kv_pages_cached", "Pages kept for prompts that begin alike.",
              engine.kv_pages_cached);
    add_memory(out, engine);

    out.counter("moex_prompt_tokens_total", "Prompt tokens read.", engine.prompt_tokens);
    out.counter("moex_cached_tokens_total", "Prompt tokens found in the KV cache.",
                engine.cached_tokens);
    out.counter("moex_cached_tokens_disk_total", "Prompt tokens found in pages on disk.",
                engine.cached_tokens_disk);
    const PageStoreCounters& disk = engine.page_store;
    out.gauge("moex_kv_disk_bytes", "KV pages on disk.", static_cast<double>(disk.bytes));
    out.counter("moex_kv_disk_pages_written_total", "KV pages written to disk.",
                disk.pages_written);
    out.counter("moex_kv_disk_pages_read_total", "KV pages read from disk.", disk.pages_read);
    out.counter("moex_kv_disk_pages_refused_total", "KV pages on disk that were damaged.",
                disk.pages_refused);
    out.counter("moex_kv_disk_writes_failed_total", "KV pages that could not be written.",
                disk.writes_failed);
    out.counter("moex_generation_tokens_total", "Tokens generated.", engine.generated_tokens);
    out.counter("moex_spec_decode_num_drafts_total", "Steps of a sequence with drafted tokens.",
                engine.drafts);
    out.counter("moex_spec_decode_num_draft_tokens_total", "Drafted tokens.",
                engine.drafted_tokens);
    out.counter("moex_spec_decode_num_accepted_tokens_total", "Drafted tokens that were drawn.",
                engine.accepted_tokens);
    std::vector<Labelled> accepted;
    for (std::size_t i = 0; i < engine.accepted_at.size(); ++i)
        accepted.push_back(
            labelled("position", std::to_string(i).c_str(), number(engine.accepted_at[i])));
    out.counters("moex_spec_decode_num_accepted_tokens_per_pos_total",
                 "Drafted tokens that were drawn, by position in their draft.", accepted);
    out.counter("moex_steps_total", "Passes of the model.", engine.steps);
    out.counter("moex_steps_stopped_total", "Passes begun again because a member was cancelled.",
                engine.steps_stopped);
    out.counter("moex_sequences_preempted_total",
                "Sequences that lost their pages to an older one for a while.", engine.preempted);
    out.counter("moex_steps_multi_sequence_total", "Passes that served two sequences or more.",
                engine.steps_multi_sequence);
    out.counter("moex_steps_micro_batched_total", "Passes cut into two micro-batches or more.",
                engine.steps_micro_batched);
    out.counter("moex_step_rows_total", "Rows over all passes.", engine.rows);
    out.counter("moex_step_seconds_total", "Time spent in passes.", seconds(engine.step_time));
    out.counter("moex_experts_waited_seconds_total", "Time passes waited for experts.",
                seconds(engine.experts_waited));
}

void add_workers(Families& out, const std::vector<WorkerView>& workers) {
    std::map<std::pair<std::string, std::string>, double> by_state;
    std::vector<double> p50;
    double p99 = 0;
    for (const WorkerView& worker : workers) {
        const std::string& backend = worker.device.backend;
        by_state[{backend.empty() ? "unknown" : backend, worker_state_name(worker.state)}] += 1;
        if (worker.groups_answered == 0) continue;
        p50.push_back(worker.latency_p50_ms / 1e3);
        p99 = std::max(p99, worker.latency_p99_ms / 1e3);
    }

    std::vector<Labelled> rows;
    rows.reserve(by_state.size());
    for (const auto& [key, count] : by_state)
        rows.push_back({{{"backend", key.first}, {"state", key.second}}, count});
    if (rows.empty()) rows.push_back({{{"backend", "webgpu"}, {"state", "active"}}, 0});
    out.gauges("moex_workers", "Connected workers.", rows);

    std::sort(p50.begin(), p50.end());
    const double median = p50.empty() ? 0 : p50[p50.size() / 2];
    out.gauges("moex_call_latency_seconds",
               "Groups at workers: median of the workers' medians, worst of their p99.",
               {labelled("quantile", "0.5", median), labelled("quantile", "0.99", p99)});
}

void add_calls(Families& out, const SwarmCounters& swarm) {
    const std::uint64_t hedges_lost = swarm.hedges_sent -
                                      std::min(swarm.hedges_sent, swarm.hedges_won);
    const std::uint64_t good_answers = swarm.groups_answered -
                                       std::min(swarm.groups_answered, swarm.bad_answers);

    out.counter("moex_rounds_total", "Layers exchanged with the workers.", swarm.rounds);
    out.counter("moex_rounds_failed_total", "Rounds without an answer.", swarm.rounds_failed);
    out.counters("moex_calls_total", "Expert calls, by the side that answered.",
                 {labelled("result", "remote", number(swarm.calls_remote)),
                  labelled("result", "local", number(swarm.calls_local))});
    out.counter("moex_fallback_total", "Expert calls answered by the hub itself.",
                swarm.calls_local);
    out.counters("moex_groups_total", "Groups sent to and answered by workers.",
                 {labelled("direction", "sent", number(swarm.groups_sent)),
                  labelled("direction", "answered", number(swarm.groups_answered))});
    out.counters("moex_hedges_total", "Second attempts, by result.",
                 {labelled("won", "true", number(swarm.hedges_won)),
                  labelled("won", "false", number(hedges_lost))});
    out.counter("moex_probes_total", "Copies of calls that only measure a worker.",
                swarm.probes_sent);
    out.counter("moex_redispatched_total", "Groups sent again after a failure.",
                swarm.redispatched);
    out.counter("moex_timeouts_total", "Attempts that took too long.", swarm.timeouts);
    out.counter("moex_cancels_total", "Attempts cancelled.", swarm.cancels);
    out.counter("moex_late_total", "Answers that arrived too late.", swarm.late);
    const std::uint64_t out_of_bounds = swarm.bad_answers - std::min(swarm.bad_answers, swarm.lies);
    out.counters("moex_verify_total",
                 "Answers checked for shape, finite values and norm; rows computed again.",
                 {{{{"method", "bounds"}, {"result", "ok"}}, number(good_answers)},
                  {{{"method", "bounds"}, {"result", "bad"}}, number(out_of_bounds)},
                  {{{"method", "judge"}, {"result", "ok"}}, number(swarm.rows_right)},
                  {{{"method", "judge"}, {"result", "bad"}}, number(swarm.rows_wrong)},
                  {{{"method", "judge"}, {"result", "undecided"}}, number(swarm.rows_undecided)}});
    out.counters("moex_pairs_total", "Expert and row pairs of contributors, by proof.",
                 {labelled("proof", "verified", number(swarm.pairs_verified)),
                  labelled("proof", "proven", number(swarm.pairs_proven)),
                  labelled("proof", "unchecked", number(swarm.pairs_unchecked))});
    out.counter("moex_pairs_replaced_total",
                "Expert and row pairs replaced by default vectors, because a request did not wait.",
                swarm.pairs_late);
    out.counter("moex_bans_total", "Workers that were banned for false answers.", swarm.bans);
}

// Adds metrics whose values the workers themselves report.
void add_on_demand(Families& out, const SlotFigures& slots) {
    out.counters("moex_on_demand_experts_total",
                 "Experts requested from workers that load on demand, by hit or miss.",
                 {labelled("found", "hit", number(slots.hits)),
                  labelled("found", "late", number(slots.late)),
                  labelled("found", "missing", number(slots.misses() - slots.late))});
    out.counter("moex_on_demand_foreseen_total", "Hits that a hint had predicted.", slots.foreseen);
    out.counter("moex_on_demand_lead_seconds_total", "From hint to call, of all of these.",
                1e-6 * number(slots.lead_us));
    out.counter("moex_on_demand_loads_total", "Groups that waited for experts.", slots.loads);
    out.counter("moex_on_demand_load_seconds_total", "For so long in all.",
                1e-6 * number(slots.load_us));
    out.counter("moex_on_demand_expired_total", "Hints that came to their turn too late.",
                slots.expired);
    out.counters(
        "moex_on_demand_brought_total", "Experts brought to workers' memory, by use.",
        {labelled("used", "true", number(slots.brought - std::min(slots.brought, slots.wasted))),
         labelled("used", "false", number(slots.wasted))});
}

void add_wire(Families& out, const SwarmCounters& swarm) {
    out.counter("moex_bad_frames_total", "Frames that could not be decoded.", swarm.bad_frames);
    out.counters("moex_wire_bytes_total", "Bytes of frames.",
                 {labelled("dir", "out", number(swarm.bytes_sent)),
                  labelled("dir", "in", number(swarm.bytes_received))});
    out.counters("moex_wire_frames_total", "Frames.",
                 {labelled("dir", "out", number(swarm.frames_sent)),
                  labelled("dir", "in", number(swarm.frames_received))});
    out.gauge("moex_calls_in_flight", "Groups at workers now.", swarm.in_flight);
    out.gauge("moex_rounds_open", "Rounds in progress.", swarm.rounds_open);
}

void add_experts(Families& out, const Coverage& coverage, std::vector<std::uint16_t> replicas) {
    std::sort(replicas.begin(), replicas.end());
    const double min = replicas.empty() ? 0 : replicas.front();
    const double median = replicas.empty() ? 0 : replicas[replicas.size() / 2];
    out.gauges("moex_expert_replicas", "Workers that are ready for an expert.",
               {labelled("stat", "min", min), labelled("stat", "median", median)});
    out.gauges(
        "moex_expert_units", "Experts of all layers, and how many have an answerer.",
        {labelled("state", "all", coverage.units), labelled("state", "covered", coverage.covered)});
    out.gauge("moex_expert_extra_copies", "Experts that are to have one more copy than others.",
              coverage.extra);
}

void add_host(Families& out, const HostState& host) {
    out.gauge("moex_certificate_end_timestamp_seconds",
              "Unix time at which the TLS certificate expires; 0: no certificate.",
              host.certificate_end_s);
    out.gauge("moex_state_free_bytes", "Free space on the disk of the state folder.",
              host.state_free_bytes);
    out.gauge("moex_state_writes_fail", "1 while the state folder cannot be written.",
              host.state_writes_fail ? 1 : 0);
}

// What this hub knows of the hubs of its store; zeros for a hub that is alone.
void add_fleet(Families& out, const FleetView& fleet, bool store_is_away) {
    double living = 0, gone = 0, streams = 0, workers = 0;
    for (const Member& hub : fleet.members) {
        (hub.left_ms > 0 ? living : gone) += 1;
        if (hub.left_ms <= 0) continue;
        streams += number(hub.streams);
        workers += number(hub.workers);
    }
    out.gauges("moex_fleet_hubs", "Hubs of the shared store, by their leases.",
               {labelled("state", "living", living), labelled("state", "gone", gone)});
    out.gauge("moex_fleet_streams", "Answers that run at the living hubs.", streams);
    out.gauge("moex_fleet_workers", "Workers of the living hubs.", workers);
    out.gauge("moex_store_away", "1 while the shared store does not answer, or was wiped.",
              store_is_away ? 1 : 0);
}

const char* event_name(WorkerEvent::Kind kind) {
    switch (kind) {
        case WorkerEvent::Kind::joined: return "joined";
        case WorkerEvent::Kind::ready: return "ready";
        case WorkerEvent::Kind::left: return "left";
        case WorkerEvent::Kind::unhealthy: return "unhealthy";
        case WorkerEvent::Kind::healthy: return "healthy";
        case WorkerEvent::Kind::removed: return "removed";
        case WorkerEvent::Kind::lied: return "lied";
        case WorkerEvent::Kind::banned: return "banned";
        case WorkerEvent::Kind::set_aside: return "set_aside";
    }
    return "unknown";
}
const char* ejection_reason(CloseCode code) {
    switch (code) {
        case CloseCode::policy: return "bad_answers";
        case CloseCode::protocol_error:
        case CloseCode::text_frame: return "bad_frame";
        case CloseCode::too_big: return "too_big";
        case CloseCode::going_away: break;
    }
    return "other";
}

}  // namespace

struct Metrics::State {
    prometheus::Registry registry;
    prometheus::Family<prometheus::Counter>& success = prometheus::BuildCounter()
                                                           .Name("moex_request_success_total")
                                                           .Help(
                                                               "Generations that ended, by reason.")
                                                           .Register(registry);
    prometheus::Family<prometheus::Counter>& http = prometheus::BuildCounter()
                                                        .Name("moex_http_responses_total")
                                                        .Help("HTTP answers, by status.")
                                                        .Register(registry);
    prometheus::Family<prometheus::Counter>& worker_events = prometheus::BuildCounter()
                                                                 .Name("moex_worker_events_total")
                                                                 .Help("What happened to workers.")
                                                                 .Register(registry);
    prometheus::Family<prometheus::Counter>& ejections =
        prometheus::BuildCounter()
            .Name("moex_ejections_total")
            .Help("Workers that were put out, by what they did.")
            .Register(registry);
    prometheus::Histogram& ttft = histogram("moex_time_to_first_token_seconds",
                                            "Request read to first token sent.", request_seconds);
    prometheus::Histogram& inter_token = histogram("moex_inter_token_latency_seconds",
                                                   "Mean gap between the tokens of a generation.",
                                                   token_seconds);
    prometheus::Histogram& e2e = histogram("moex_e2e_request_latency_seconds",
                                           "Request read to last token sent.", request_seconds);
    prometheus::Histogram& queue = histogram("moex_request_queue_time_seconds",
                                             "Time spent waiting for a place in the batch.",
                                             request_seconds);

    prometheus::Histogram& histogram(const char* name, const char* help,
                                     const prometheus::Histogram::BucketBoundaries& buckets) {
        return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({},
                                                                                         buckets);
    }
};

Metrics::Metrics() : state_(std::make_unique<State>()) {
    // Create all counters at the start: Prometheus sees the first increase of a counter only if the
    // counter existed before.
    for (const char* reason : {"stop", "length", "abort", "error"})
        state_->success.Add({{"finished_reason", reason}});
    using enum WorkerEvent::Kind;
    for (const WorkerEvent::Kind kind :
         {joined, ready, left, unhealthy, healthy, removed, lied, banned, set_aside})
        state_->worker_events.Add({{"event", event_name(kind)}});
    for (const CloseCode code : {CloseCode::policy, CloseCode::protocol_error, CloseCode::too_big})
        state_->ejections.Add({{"reason", ejection_reason(code)}});
}
Metrics::~Metrics() = default;

void Metrics::on_finished(const char* finish_reason) {
    state_->success.Add({{"finished_reason", finish_reason}}).Increment();
}
void Metrics::on_http(unsigned status) {
    state_->http.Add({{"status", moex::text(status)}}).Increment();
}
void Metrics::on_worker_event(WorkerEvent::Kind kind) {
    state_->worker_events.Add({{"event", event_name(kind)}}).Increment();
}
void Metrics::on_ejection(CloseCode code) {
    state_->ejections.Add({{"reason", ejection_reason(code)}}).Increment();
}
void Metrics::on_latency(double ttft_s, double e2e_s, double mean_inter_token_s, double queue_s) {
    state_->ttft.Observe(ttft_s);
    state_->e2e.Observe(e2e_s);
    // An answer of one token has no time between tokens.
    if (mean_inter_token_s > 0) state_->inter_token.Observe(mean_inter_token_s);
    state_->queue.Observe(queue_s);
}

std::string Metrics::text(const MetricsSnapshot& snapshot) const {
    std::vector<MetricFamily> families = state_->registry.Collect();
    Families out(families);
    out.gauge("moex_uptime_seconds", "Since the hub started.", snapshot.uptime_s);
    add_engine(out, snapshot.engine);
    add_workers(out, snapshot.workers);
    add_calls(out, snapshot.swarm);
    add_on_demand(out, snapshot.swarm.slots);
    add_wire(out, snapshot.swarm);
    add_experts(out, snapshot.coverage, snapshot.replicas);
    add_host(out, snapshot.host);
    add_fleet(out, snapshot.fleet ? *snapshot.fleet : FleetView{}, snapshot.store_is_away);
    out.counter("moex_requests_refused_total",
                "Requests refused by the gate, access rules or rate limits.",
                snapshot.requests_refused);
    return prometheus::TextSerializer().Serialize(families);
}

}  // namespace moex::net
