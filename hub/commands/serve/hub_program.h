// The whole hub as one object: what it opens, in which order, and how it comes down again.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "hub/base/trace.h"
#include "hub/commands/command.h"
#include "hub/commands/gpu/gpu_steps.h"
#include "hub/commands/load_model.h"
#include "hub/commands/open_shadow.h"
#include "hub/commands/serve/drop_privileges.h"
#include "hub/commands/serve/host_keys.h"
#include "hub/commands/serve/service_manager.h"
#include "hub/commands/signals.h"
#include "hub/foresight/lossy/lossy_ways.h"
#include "hub/foresight/predict/expert_profile.h"
#include "hub/foresight/predict/hints.h"
#include "hub/foresight/shadow/served_shadow.h"
#include "hub/net/server.h"
#include "hub/options/options_shadow.h"

namespace moex {

// Ctrl-C and SIGTERM: at once while there is nothing to drain, then through the server.
class StopSwitch {
  public:
    // `manager` is told before anything stops, and outlives the switch.
    explicit StopSwitch(const ServiceManager& manager);
    // A signal stops `server` from now on, also one that came before.
    void attach(net::Server& server);
    // The server has stopped; a further signal ends the process.
    void detach();

  private:
    void on_signal(int count);

    const ServiceManager& manager_;
    std::mutex mutex_;
    net::Server* server_ = nullptr;
    int num_signals_ = 0;
    SignalWatcher signals_;  // last: its thread uses the members above
};

class HubProgram {
  public:
    // `invocation` outlives the program; its settings contradict each other nowhere.
    explicit HubProgram(const Invocation& invocation);

    // Reads the package and its texts as the user who would serve them; starts nothing.
    Status check();
    // Everything up to a bound port. May throw what Server's constructor throws.
    Status open();
    // Prints the links and serves until a signal.
    void run();

  private:
    Status choose_user();
    Status choose_state_directory();
    Status load();
    Status open_gpu();
    Status require_computers() const;
    Status open_registry();
    void join_rooms();
    // SIGHUP: keys, and the settings that may change while serving. What cannot be read changes
    // nothing. Disk thread.
    void reload();
    void on_worker_event(const WorkerEvent& event);
    void log_ready() const;
    void print_links() const;
    // A dense model has nothing to ask anybody.
    bool swarm_computes() const {
        return settings_.text("backend") == "swarm" && model_.package->config().has_experts();
    }
    ExpertBackend& experts();
    Duration spin_max() const;
    // The GPU holds all experts, and nobody else is asked.
    bool gpu_computes_experts() const;
    std::string gpu_words() const;
    Status open_lossy_ways();
    void offer_lossy_ways(ApiOptions& options);
    Status open_late_calls();
    Status open_hints();
    Status open_shadow_of(const ShadowWish& wish);
    void start_shadow();
    nlohmann::json shadow_json() const;
    EngineOptions engine_options() const;

    // In the order in which they come into being. They go in the reverse one: who asks goes
    // before who answers, the engine before the swarm, the swarm before the server whose strand
    // carries it.
    const Invocation& invocation_;
    const Settings& settings_;
    std::mutex in_force_mutex_;
    Settings in_force_;  // settings_, with what was changed since
    const net::ServerOptions server_options_;
    const TimePoint started_at_;
    const ServiceManager manager_;
    StopSwitch stop_;  // threads inherit the blocked signals, so it comes before all of them
    std::optional<SystemUser> user_;
    std::filesystem::path state_directory_;
    LoadedModel model_;
    std::unique_ptr<GpuSteps> gpu_;          // null where this machine's cores compute the steps
    std::atomic<bool> gpu_is_lost_{false};   // for good: the cores took over
    std::unique_ptr<LossyWays> lossy_ways_;  // null: no_lossy_ways_ says why
    std::string no_lossy_ways_;
    std::shared_ptr<const ExpertProfile> default_vectors_;  // null: every answer is waited for
    std::unique_ptr<Hints> hints_;                          // null: none are given
    std::string hints_by_ = "off";                          // the predictor's name
    std::optional<ShadowParts> shadow_parts_;
    std::unique_ptr<Registry> registry_;
    MadeKeys made_keys_;
    EngineOptions engine_options_;
    std::unique_ptr<Trace> trace_;  // what has spans goes before it
    std::optional<net::Server> server_;
    std::optional<SwarmBackend> swarm_;
    std::unique_ptr<ExpertBackend> late_calls_;  // over the swarm, where default_vectors_ are
    std::unique_ptr<ServedShadow> shadow_;       // tells the swarm, is asked by the engine
    std::optional<Engine> engine_;
    std::optional<Api> api_;
};

}  // namespace moex
