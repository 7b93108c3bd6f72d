// The whole hub as one object. It owns all parts of the hub, the order in which they open, and the
// order in which they stop.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "hub/api/jobs/taken_pages.h"
#include "hub/base/trace.h"
#include "hub/commands/command.h"
#include "hub/commands/gpu/gpu_steps.h"
#include "hub/commands/gpu/span_layers.h"
#include "hub/commands/load_model.h"
#include "hub/commands/open_drafts.h"
#include "hub/commands/open_shadow.h"
#include "hub/commands/serve/drop_privileges.h"
#include "hub/commands/serve/guarded_steps.h"
#include "hub/commands/serve/host_keys.h"
#include "hub/commands/serve/kept_pages.h"
#include "hub/commands/serve/serve_settings.h"
#include "hub/commands/serve/service_manager.h"
#include "hub/commands/serve/stop_switch.h"
#include "hub/engine/own_layers.h"
#include "hub/foresight/lossy/lossy_modes.h"
#include "hub/foresight/predict/expert_profile.h"
#include "hub/foresight/predict/hints.h"
#include "hub/foresight/shadow/served_shadow.h"
#include "hub/net/fleet/fleet_streams.h"
#include "hub/net/server.h"
#include "hub/state/disk_pages.h"

namespace moex {

class HubProgram {
  public:
    // `settings` was read from `invocation.settings`. `invocation` outlives this object.
    HubProgram(const Invocation& invocation, ServeSettings settings);

    // Opens all parts of the hub, with the port as the final one. May throw the exceptions of
    // Server's constructor.
    Status open();
    // Makes `source` the only source of drafts. Called before open(); for benches. `source`
    // outlives this object.
    void use_drafts_of(DraftSource& source) { only_drafts_ = &source; }
    // Prints the links to the hub's pages and serves until a signal arrives. Returns an error if
    // the hub stopped for another reason: a file of the package got other bytes.
    Status run();

  private:
    Status choose_user();
    Status choose_state_directory();
    Status load();
    Status open_gpu();
    Status require_computers() const;
    Status open_registry(StateLock lock);
    net::ServerOptions within_limits(net::ServerOptions options) const;
    Status open_pages();
    KeptPagesParts kept_pages_parts() const;
    Status open_signing_key();
    void use_spans(SpanClient* spans);
    void join_rooms();
    // Reads the key of --fleet-key.
    Status open_fleet_key();
    void offer_streams(ApiOptions& options);
    // Enters the hub into the fleet of --store, if it has one.
    Status join_fleet();
    // Called on SIGHUP, on the disk thread: reads keys again, and the settings that may change
    // while serving. If one cannot be read, nothing changes.
    void reload();
    void on_worker_event(const WorkerEvent& event);
    void on_changed_bytes(const Error& error);
    void log_ready() const;
    void print_links() const;
    // Returns true if workers compute the experts. False for a dense model, which has no experts.
    bool swarm_computes() const {
        return settings_.contributors.backend == ServeBackend::swarm &&
               model_.package->config().has_experts();
    }
    ExpertBackend& experts();
    Duration spin_max() const;
    // Returns true if the GPU holds all experts, so that no expert call leaves this machine.
    bool gpu_computes_experts() const;
    void add_memory_of_drafts();
    std::string gpu_words() const;
    Status open_lossy_modes();
    void offer_lossy_modes(ApiOptions& options);
    Status open_late_calls();
    Status open_hints();
    Status open_drafts();
    Status open_device_model();
    bool has_weights_for_checks() const;
    void open_own_layers();
    void pack_experts();
    std::string why_no_spans() const;
    void open_spans();
    nlohmann::json spans_json() const;
    Status open_served_shadow(const std::string& folder);
    void start_shadow();
    nlohmann::json shadow_json() const;
    EngineOptions engine_options() const;

    // The members are in the order of their creation and are destroyed in the reverse order. A
    // member that calls another member is destroyed before that member: the engine before the
    // swarm, and the swarm before the server whose strand runs it.
    const Invocation& invocation_;
    const ServeSettings settings_;
    std::mutex in_force_mutex_;
    Settings in_force_;  // settings in force: those of the invocation, as changed by SIGHUPs
    const net::ServerOptions server_options_;
    std::uint64_t open_files_ = UINT64_MAX;  // the limit in force, set by open()
    const TimePoint started_at_;
    const ServiceManager manager_;
    // made before all threads, because threads inherit the signals that it blocks
    StopSwitch stop_;
    std::optional<SystemUser> user_;
    std::filesystem::path state_directory_;
    std::mutex changed_mutex_;
    std::optional<Error> changed_bytes_;  // set once, when a file of the package got other bytes
    LoadedModel model_;
    // the package of --device-model; null: browsers load the served one
    std::shared_ptr<const ModelPackage> device_package_;
    std::unique_ptr<SpanLayers> span_layers_;  // null: workers compute no whole layers
    std::unique_ptr<GpuSteps> gpu_;            // null: the cores of this machine compute the steps
    std::atomic<bool> gpu_is_lost_{false};     // true: the GPU is lost for good
    // null: the hub offers none, and no_lossy_modes_ says why
    std::unique_ptr<LossyModes> lossy_modes_;
    std::string no_lossy_modes_;
    // null: requests wait for all expert answers
    std::shared_ptr<const ExpertProfile> default_vectors_;
    std::unique_ptr<Hints> hints_;  // null: the hub predicts no experts
    std::string hints_by_ = "off";  // the predictor's name
    std::optional<ShadowParts> shadow_parts_;
    DraftParts drafts_;  // used by the engine
    DraftSource* only_drafts_ = nullptr;
    std::unique_ptr<Registry> registry_;
    std::unique_ptr<DiskPages> pages_;   // used by the engine; null: no page is kept on disk
    std::unique_ptr<TakenPages> taken_;  // used by the engine; null: clients may send no pages
    MadeKeys made_keys_;
    std::shared_ptr<const SigningKey> signing_key_;  // null: the hub signs nothing
    EngineOptions engine_options_;
    std::unique_ptr<Trace> trace_;  // outlives all members that record trace spans
    std::optional<FleetKey> fleet_key_;
    std::optional<net::Server> server_;
    std::unique_ptr<net::FleetStreams> fleet_;  // used by the engine's jobs; null: no fleet
    std::optional<SwarmBackend> swarm_;
    std::unique_ptr<ExpertBackend> late_calls_;  // wraps the swarm; null without default_vectors_
    std::unique_ptr<LocalExperts> checking_experts_;
    std::unique_ptr<ExpertBackend> own_layers_;  // null without own layers and weights for checks
    std::unique_ptr<ServedShadow> shadow_;       // called by the engine; sends hints to the swarm
    std::optional<GuardedSteps> steps_;          // the device that the engine uses
    std::optional<Engine> engine_;
    std::optional<Api> api_;
};

}  // namespace moex
