// The text of /metrics in the Prometheus format. This class observes histograms; the other values
// are read from the counters of engine and swarm when a client requests /metrics. Names follow
// vLLM's suffixes under `moex_`, so that dashboards can be reused. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "hub/dispatch/core/swarm_core.h"
#include "hub/engine/engine.h"
#include "hub/net/health/host_state.h"
#include "hub/registry/membership.h"

namespace moex::net {

struct MetricsSnapshot {
    EngineCounters engine;
    SwarmCounters swarm;
    Coverage coverage;
    std::vector<WorkerView> workers;
    std::vector<std::uint16_t> replicas;  // by MoE unit
    std::uint64_t requests_refused = 0;
    HostState host;
    std::shared_ptr<const FleetView> fleet;  // null: none
    bool store_is_away = false;
    double uptime_s = 0;
};

class Metrics {
  public:
    Metrics();
    ~Metrics();
    void on_finished(const char* finish_reason);
    void on_latency(double ttft_s, double e2e_s, double mean_inter_token_s, double queue_s);
    void on_http(unsigned status);
    void on_worker_event(WorkerEvent::Kind kind);
    // Counts the ejection of a worker that the swarm had admitted.
    void on_ejection(CloseCode code);
    std::string text(const MetricsSnapshot& snapshot) const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex::net
