// Experts on demand: which of the experts that a worker holds lie in its slots. It may hold more
// than they take: those are kept where Platform::fetch_blob() finds them without the hub (a
// folder, a browser's cache), and are brought to a slot, verified again, when a group asks for
// them or the hub foresees that one will (PREFETCH). Whose slot they get is a policy's choice;
// what runs is never touched. A wrong guess costs time and nothing else.
// Where a worker holds no more than its slots take, all of it lies there and nothing is brought.
// One thread. A callback never runs inside the call that takes it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "protocol/life_guard.h"
#include "web-worker/group_runner.h"
#include "web-worker/session/status_report.h"
#include "web-worker/slots/hint_judge.h"
#include "web-worker/slots/hint_trial.h"
#include "web-worker/slots/transfer_choice.h"
#include "web-worker/unit_store.h"

namespace moex {

class SlotCache {
  public:
    struct Options {
        std::uint64_t keep_bytes = 0;  // of experts held; no more than fit into slots if less
        EvictionPolicy policy = EvictionPolicy::lru;
        std::function<void(const Error&)> lost;  // the device gave nothing; may end this object
    };
    SlotCache(Platform& platform, StatusReport& report, UnitStore& store, GroupRunner& runner,
              std::uint64_t blob_bytes, Options options)
        : platform_(platform),
          report_(report),
          store_(store),
          runner_(runner),
          blob_bytes_(blob_bytes),
          options_(std::move(options)) {}
    SlotCache(const SlotCache&) = delete;

    // from here on what is put into slots is bound
    void runner_ready() { runner_ready_ = true; }

    // ---- what is held, in a slot or not

    std::uint32_t capacity() const { return capacity_of(store_.slots_max()); }
    // with another budget for slots
    std::uint32_t capacity_for(std::uint64_t budget_bytes) const {
        return capacity_of(store_.slots_for(budget_bytes));
    }
    std::uint64_t bytes_max() const {
        return std::max<std::uint64_t>(store_.bytes_max(), capacity() * blob_bytes_);
    }
    // Another number of experts to hold; what is held beyond it is let go of by its owner first.
    void set_keep(std::uint64_t keep_bytes) { options_.keep_bytes = keep_bytes; }
    // More than the slots take, or not all of it lies there yet.
    bool on_demand() const {
        return capacity() > store_.slots_max() || num_units() != store_.num_units();
    }
    bool holds(Unit unit) const { return held_.contains(unit); }
    // Another number than before: something else may be held.
    std::uint64_t num_changes() const { return num_changes_; }
    std::uint32_t num_units() const { return static_cast<std::uint32_t>(held_.size()); }
    std::vector<Unit> units() const;
    // In the order in which they may go: those without a slot, then the one in the last slot.
    std::vector<Unit> units_from_the_end() const;

    // Takes over a verified blob; it lies in a slot afterwards if one was free. no_space where
    // this would be more than it holds.
    Status keep(Unit unit, const Sha256& hash, ByteView blob);
    void forget(Unit unit);
    // Another budget for slots, whose capacity_for() has room for what is held.
    Status resize(std::uint64_t budget_bytes);
    // Platform::cancel_fetches() was called: whoever waits for an expert is told.
    void fetches_cancelled();

    // ---- what a group asks for: distinct units, all of them held

    bool in_slots(std::span<const Unit> units) const;
    std::uint32_t slots() const { return store_.slots_max(); }
    // Counts what a group's arrival found.
    void count(std::span<const Unit> units);
    // Brings them to slots, at most as many as there are; some may be on their way there when it is
    // done, and whoever runs then runs once they are there. `unavailable` where one cannot be read;
    // `cancelled`. One call at a time. Until they are used they may go again when memory shrinks.
    void bring(std::vector<Unit> units, std::function<void(Status)> done);
    bool bringing() const { return done_ != nullptr; }
    // While they are in use they keep their slots.
    void begin_use(std::span<const Unit> units);
    void end_use(std::span<const Unit> units);

    // Will be asked for soon, the surest first: brought while no group waits for others, where it
    // is worth its way (hint_judge.h), as long as hints pay (hint_trial.h). What is not held is
    // passed over. `deadlines_ms`, as many or none: from now on, after which one is dropped; 0: it
    // has none.
    void prefetch(std::span<const Unit> units, std::span<const std::uint16_t> deadlines_ms = {});
    // Was asked for and will be again: brought as if it were foreseen, whatever hints are worth.
    void expect(Unit unit);
    // Where a unit that is held lies now.
    UnitTier tier_of(Unit unit) const;

  private:
    using Rank = std::pair<std::uint64_t, std::uint64_t>;
    struct Held {
        Sha256 hash{};
        std::uint64_t last_used = 0;  // by the clock of uses
        std::uint64_t uses = 0;
        std::uint32_t in_use = 0;  // by groups that run
        std::optional<Rank> rank;  // in by_rank_; none: it lies in no slot
        bool foreseen = false;     // brought for a hint, not used since
        std::uint64_t hint = 0;    // the number of the newest that named it; 0: none since its use
        double hinted_ms = 0, expires_ms = 0;  // 0: never
    };
    // A group's wait, from its asking until the last of it is there.
    struct Load {
        double asked_ms = 0;
        std::uint64_t transfers = 0;  // under way
        bool placed = false;          // all of it has slots
    };
    std::uint32_t capacity_of(std::uint32_t slots) const {
        return std::max(slots, static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                   options_.keep_bytes / blob_bytes_, num_units_max)));
    }
    bool has_free_slot() const { return store_.num_units() < store_.slots_max(); }
    bool make_room(bool for_group);
    bool wanted(Unit unit) const;
    void take_hints(std::span<const Unit> units, std::span<const std::uint16_t> deadlines_ms);
    void count_lead(Unit unit);
    void fetch(Unit unit, bool urgent);
    void arrived(Unit unit, Result<Bytes> blob);
    Status place(Unit unit, const HeldBlob& blob);
    Status place_from_memory(Unit unit, const HeldBlob& blob);
    Status placed(Unit unit);
    void drop(Unit unit);
    void rank(Unit unit, Held& held);
    void wait_for(Unit unit, const std::shared_ptr<Load>& load);
    void is_there(Unit unit);
    void count_load(const Load& load);
    void go_on();
    void go_on_soon();
    Status place_what_came();
    Status place_group();
    Status begin_hints();
    bool has_expired(Unit unit);
    void count_hint(Unit unit);
    void finish(Status status);

    static constexpr std::uint64_t num_units_max = 1u << 24;

    Platform& platform_;
    StatusReport& report_;
    UnitStore& store_;
    GroupRunner& runner_;
    std::uint64_t blob_bytes_;
    Options options_;

    bool runner_ready_ = false;
    std::map<Unit, Held> held_;
    std::uint64_t num_changes_ = 0;
    std::set<std::pair<Rank, Unit>> by_rank_;  // that lie in slots, who may go first in front
    std::uint64_t clock_ = 0;
    std::vector<Unit> group_;  // that is waited for
    std::function<void(Status)> done_;
    std::shared_ptr<Load> load_;                                      // of group_
    std::map<Unit, std::vector<std::shared_ptr<Load>>> waiting_for_;  // that are on their way
    std::uint64_t hint_transfers_ = 0;                                // under way
    std::vector<Unit> predicted_;     // hints that are not on their way yet, the surest last
    std::set<Unit> hinted_;           // by the newest hints
    std::uint64_t num_hints_ = 0;     // frames of them
    std::map<Unit, bool> fetching_;   // for a group, or for a hint
    std::map<Unit, Bytes> unplaced_;  // here, and no slot is free
    std::uint64_t fetch_number_ = 0;
    bool goes_on_soon_ = false;
    HintJudge judge_;
    HintTrial trial_;
    std::optional<TransferChoice> transfers_;  // who brings what lies in memory; none did yet
    std::uint64_t brought_ = 0;                // when the last group was answered
    LifeGuard life_;
};

}  // namespace moex
