// From the hub's ASSIGN to its READY: which experts this worker shall
// hold, their downloads, and what the hub was told.
// Lives as long as its store: one model on one device.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "protocol/life_guard.h"
#include "web-worker/session/hub_connection.h"
#include "web-worker/slots/slot_cache.h"

namespace moex {

class ExpertLoader {
  public:
    struct Events {
        // of what is held, assigned or on its way
        std::function<void()> changed;
        // assigned, and there is no room for it
        std::function<void(const std::vector<Unit>& units)> beyond;
        // the GPU gave nothing; may end this loader
        std::function<void(const gpu::Loss& loss)> lost;
    };
    ExpertLoader(Platform& platform, StatusReport& report, HubConnection& hub, UnitStore& store,
                 GroupRunner& runner, SlotCache& cache, std::uint64_t blob_bytes, Events events)
        : platform_(platform),
          report_(report),
          hub_(hub),
          store_(store),
          runner_(runner),
          cache_(cache),
          blob_bytes_(blob_bytes),
          events_(std::move(events)) {}
    ~ExpertLoader();
    ExpertLoader(const ExpertLoader&) = delete;

    // from here on what is held may be announced
    void runner_ready();
    // nothing is downloaded until the next ASSIGN
    void stop_fetching();
    // the hub assigns anew; what is held stays until its room is needed
    void begin_connection();
    // whether this hub is told where what is ready lies
    void report_tiers(bool on) { reports_tiers_ = on; }
    void assign(const Assign& message);
    void release(const std::vector<Unit>& units);
    // Another limit for weights. The value: what was assigned and is let go of for it, those first
    // that are not here yet.
    Result<std::vector<Unit>> resize(std::uint64_t budget_bytes);

    // assigned, or to be assigned later
    std::uint32_t num_planned() const {
        return static_cast<std::uint32_t>(assigned_.size()) + num_later_;
    }
    std::uint32_t num_ready() const;  // assigned and held
    bool complete() const { return num_ready() == num_planned(); }

  private:
    void set_later(std::uint32_t num_units);
    void fetch(Unit unit, std::uint32_t failures);
    void done_fetching(Unit unit);
    void store_blob(Unit unit, Result<Bytes> blob);
    bool drop_unassigned();
    void let_go(Unit unit);
    void announce();
    void lost(const Error& error);

    Platform& platform_;
    StatusReport& report_;
    HubConnection& hub_;
    UnitStore& store_;
    GroupRunner& runner_;
    SlotCache& cache_;
    std::uint64_t blob_bytes_;
    Events events_;
    bool runner_ready_ = false, reports_tiers_ = false;
    std::map<Unit, Sha256> assigned_;
    std::uint64_t num_assignments_ = 0;  // and releases
    // Counted anew when either has changed: thousands of experts, asked for ten times a second.
    mutable std::pair<std::uint64_t, std::uint64_t> counted_at_;  // assignments, changes held
    mutable std::uint32_t num_ready_ = 0;
    std::uint32_t num_later_ = 0;  // that the hub has not named yet
    std::set<Unit> fetching_;
    std::vector<Unit> unannounced_;  // held, not yet told to the hub
    std::uint64_t announce_timer_ = 0;
    // of the downloads since they were last stopped
    std::uint64_t fetch_number_ = 0;
    LifeGuard life_;
};

}  // namespace moex
