#include "hub/net/metrics.h"

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
const char* event_name(WorkerEvent::Kind kind) {
    switch (kind) {
        case WorkerEvent::Kind::joined: return "joined";
        case WorkerEvent::Kind::ready: return "ready";
        case WorkerEvent::Kind::left: return "left";
        case WorkerEvent::Kind::unhealthy: return "unhealthy";
        case WorkerEvent::Kind::healthy: return "healthy";
        case WorkerEvent::Kind::removed: return "removed";
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
    // A counter that is there from the start shows its first increase.
    for (const char* reason : {"stop", "length", "abort", "error"})
        state_->success.Add({{"finished_reason", reason}});
    using enum WorkerEvent::Kind;
    for (const WorkerEvent::Kind kind : {joined, ready, left, unhealthy, healthy, removed})
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
    // one token has no gap
    if (mean_inter_token_s > 0) state_->inter_token.Observe(mean_inter_token_s);
    state_->queue.Observe(queue_s);
}

std::string Metrics::text(const MetricsSnapshot& snapshot) const {
    std::vector<MetricFamily> families = state_->registry.Collect();
    const auto gauge = [&](const char* name, const char* help, double value) {
        families.push_back(family(name, help, MetricType::Gauge, {{{}, value}}));
    };
    const auto counter = [&](const char* name, const char* help,
                             const std::vector<Labelled>& rows) {
        families.push_back(family(name, help, MetricType::Counter, rows));
    };
    const auto number = [](auto value) { return static_cast<double>(value); };
    const EngineCounters& engine = snapshot.engine;
    const SwarmCounters& swarm = snapshot.swarm;
    gauge("moex_uptime_seconds", "Since the hub started.", snapshot.uptime_s);
    gauge("moex_num_requests_running", "Sequences in the batch.", engine.running);
    gauge("moex_num_requests_waiting", "Sequences in the queue.", engine.waiting);
    gauge("moex_kv_pages", "Pages of the KV cache.", engine.kv_pages);
    gauge("moex_kv_pages_used", "Pages of the KV cache in use.", engine.kv_pages_used);
    counter("moex_prompt_tokens_total", "Prompt tokens read.",
            {{{}, number(engine.prompt_tokens)}});
    counter("moex_generation_tokens_total", "Tokens generated.",
            {{{}, number(engine.generated_tokens)}});
    counter("moex_steps_total", "Passes of the model.", {{{}, number(engine.steps)}});
    counter("moex_steps_stopped_total", "Passes begun again because a member was cancelled.",
            {{{}, number(engine.steps_stopped)}});
    counter("moex_sequences_preempted_total",
            "Sequences that lost their pages to an older one for a while.",
            {{{}, number(engine.preempted)}});
    counter("moex_steps_multi_sequence_total", "Passes that served two sequences or more.",
            {{{}, number(engine.steps_multi_sequence)}});
    counter("moex_step_rows_total", "Rows over all passes.", {{{}, number(engine.rows)}});
    counter("moex_step_seconds_total", "Time spent in passes.",
            {{{}, std::chrono::duration<double>(engine.step_time).count()}});
    counter("moex_experts_waited_seconds_total", "Time passes waited for experts.",
            {{{}, std::chrono::duration<double>(engine.experts_waited).count()}});

    std::map<std::pair<std::string, std::string>, double> by_state;
    std::vector<double> p50;
    double p99 = 0;
    for (const WorkerView& worker : snapshot.workers) {
        by_state[{worker.device.backend.empty() ? "unknown" : worker.device.backend,
                  worker_state_name(worker.state)}] += 1;
        if (worker.groups_answered == 0) continue;
        p50.push_back(worker.latency_p50_ms / 1e3);
        p99 = std::max(p99, worker.latency_p99_ms / 1e3);
    }
    std::vector<Labelled> workers;
    for (const auto& [key, count] : by_state)
        workers.push_back({{{"backend", key.first}, {"state", key.second}}, count});
    if (workers.empty()) workers.push_back({{{"backend", "webgpu"}, {"state", "active"}}, 0});
    families.push_back(family("moex_workers", "Connected workers.", MetricType::Gauge, workers));
    std::sort(p50.begin(), p50.end());
    families.push_back(family(
        "moex_call_latency_seconds",
        "Groups at workers: median of the workers' medians, worst of their p99.", MetricType::Gauge,
        {{{{"quantile", "0.5"}}, p50.empty() ? 0 : p50[p50.size() / 2]},
         {{{"quantile", "0.99"}}, p99}}));

    counter("moex_rounds_total", "Layers exchanged with the workers.",
            {{{}, number(swarm.rounds)}});
    counter("moex_rounds_failed_total", "Rounds that nobody could answer.",
            {{{}, number(swarm.rounds_failed)}});
    counter("moex_calls_total", "Expert calls, by who answered.",
            {{{{"result", "remote"}}, number(swarm.calls_remote)},
             {{{"result", "local"}}, number(swarm.calls_local)}});
    counter("moex_fallback_total", "Expert calls answered by the hub itself.",
            {{{}, number(swarm.calls_local)}});
    counter("moex_groups_total", "Groups sent to and answered by workers.",
            {{{{"direction", "sent"}}, number(swarm.groups_sent)},
             {{{"direction", "answered"}}, number(swarm.groups_answered)}});
    counter("moex_hedges_total", "Second attempts, by whether they won.",
            {{{{"won", "true"}}, number(swarm.hedges_won)},
             {{{"won", "false"}},
              number(swarm.hedges_sent - std::min(swarm.hedges_sent, swarm.hedges_won))}});
    counter("moex_redispatched_total", "Groups sent again after a failure.",
            {{{}, number(swarm.redispatched)}});
    counter("moex_timeouts_total", "Attempts that took too long.", {{{}, number(swarm.timeouts)}});
    counter("moex_cancels_total", "Attempts cancelled.", {{{}, number(swarm.cancels)}});
    counter("moex_late_total", "Answers that came after they were needed.",
            {{{}, number(swarm.late)}});
    counter("moex_verify_total", "Answers checked for shape, finite values and norm.",
            {{{{"method", "bounds"}, {"result", "ok"}},
              number(swarm.groups_answered - std::min(swarm.groups_answered, swarm.bad_answers))},
             {{{"method", "bounds"}, {"result", "bad"}}, number(swarm.bad_answers)}});
    counter("moex_bad_frames_total", "Frames that could not be decoded.",
            {{{}, number(swarm.bad_frames)}});
    counter("moex_wire_bytes_total", "Bytes of frames.",
            {{{{"dir", "out"}}, number(swarm.bytes_sent)},
             {{{"dir", "in"}}, number(swarm.bytes_received)}});
    counter("moex_wire_frames_total", "Frames.",
            {{{{"dir", "out"}}, number(swarm.frames_sent)},
             {{{"dir", "in"}}, number(swarm.frames_received)}});
    gauge("moex_calls_in_flight", "Groups at workers now.", number(swarm.in_flight));
    gauge("moex_rounds_open", "Rounds in progress.", number(swarm.rounds_open));

    std::vector<std::uint16_t> replicas = snapshot.replicas;
    std::sort(replicas.begin(), replicas.end());
    families.push_back(family(
        "moex_expert_replicas", "Workers that are ready for an expert.", MetricType::Gauge,
        {{{{"stat", "min"}}, replicas.empty() ? 0 : number(replicas.front())},
         {{{"stat", "median"}}, replicas.empty() ? 0 : number(replicas[replicas.size() / 2])}}));
    families.push_back(family("moex_expert_units",
                              "Experts of all layers, and how many have an answerer.",
                              MetricType::Gauge,
                              {{{{"state", "all"}}, number(snapshot.coverage.units)},
                               {{{"state", "covered"}}, number(snapshot.coverage.covered)}}));
    counter("moex_requests_refused_total",
            "Requests refused by the gate, access rules or rate limits.",
            {{{}, number(snapshot.requests_refused)}});
    return prometheus::TextSerializer().Serialize(families);
}

}  // namespace moex::net
