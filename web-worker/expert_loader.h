// Loads the experts that the hub assigns. This class knows which experts the worker shall hold
// (ASSIGN, RELEASE), downloads them, hands them to the slot cache, and reports them to the hub
// (READY). One object serves one model on one device, as its store does.
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
        // Called when the held, assigned or downloading experts have changed.
        std::function<void()> changed;
        // Called when the hub assigned `units` for which there is no room.
        std::function<void(const std::vector<Unit>& units)> beyond;
        // Called when the GPU is lost or out of memory. The handler may destroy this loader.
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

    // The runner is ready: from this call on, the experts in the slot cache are reported to the
    // hub.
    void runner_ready();
    // Cancels all downloads until the next ASSIGN.
    void stop_fetching();
    // Starts a new connection: the hub will assign experts again. Held experts stay until their
    // room is needed.
    void begin_connection();
    // If `on`, READY also reports the tier in which each expert is stored (slot, memory or store).
    void report_tiers(bool on) { reports_tiers_ = on; }
    void assign(const Assign& message);
    void release(const std::vector<Unit>& units);
    // Changes the limit for weights. Returns the assigned experts that are released to meet the
    // limit. Experts that are assigned but not held yet are released first.
    Result<std::vector<Unit>> resize(std::uint64_t budget_bytes);
    // Does UnitStore::end_lending(). Returns the assigned experts that are released because of it.
    std::vector<Unit> end_lending(std::uint64_t owner, bool is_readable);

    // The number of experts that are assigned now or will be assigned later.
    std::uint32_t num_planned() const {
        return static_cast<std::uint32_t>(assigned_.size()) + num_later_;
    }
    std::uint32_t num_ready() const;  // assigned and held
    // Returns the number of assigned experts that are not of the layers [first, end).
    std::uint32_t num_assigned_outside(std::uint32_t first_layer, std::uint32_t end_layer) const;
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
    // num_ready() counts again only if the assignments or the held experts have changed, because it
    // is called ten times a second, for thousands of experts.
    mutable std::pair<std::uint64_t, std::uint64_t> counted_at_;  // assignments, changes held
    mutable std::uint32_t num_ready_ = 0;
    std::uint32_t num_later_ = 0;  // number of experts that the hub will assign later
    std::set<Unit> fetching_;
    std::vector<Unit> unannounced_;  // held experts that READY has not reported yet
    std::uint64_t announce_timer_ = 0;
    // Number of calls of stop_fetching(): a download that started at an earlier number is ignored.
    std::uint64_t fetch_number_ = 0;
    LifeGuard life_;
};

}  // namespace moex
