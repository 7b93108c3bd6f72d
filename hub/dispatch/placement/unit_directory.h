// The directory of units: which worker shall hold a unit, which worker was ordered to hold it, and
// which one reported READY for it. It turns the placement's wishes into orders to workers, and the
// workers' reports into routes.
//
// Loading order. Units that no worker holds come before second copies, and the layer that is needed
// next comes first. Therefore a worker is never ordered to load everything at once: it is sent as
// much as its connection downloads in about a second, and the number of units that will follow.
// After a mass leave, orders wait until no more workers have left for a moment.
//
// Make before break. A copy is released only when the workers that shall hold the unit have it. A
// worker that loads none of its ordered units loses these units, and gets another chance later. A
// worker with a broken connection keeps its place for a while, so that nothing has moved when it
// returns. Units that no other worker has ready are reassigned after a moment; where many workers
// leave at once, the directory does not wait. Loaded units move at a bounded rate.
//
// The class is pure: events and `now` go in, orders come out; it uses no frame and no clock. Owner:
// the dispatch strand.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hub/base/clock.h"
#include "hub/dispatch/placement/placement.h"

namespace moex {

// The directory's record of a worker. The directory sets all fields except `id`.
struct UnitHolder {
    enum UnitFlag : std::uint8_t { wanted = 1, assigned = 2, ready = 4, cached = 8 };

    WorkerId id = 0;
    std::uint64_t ring_key = 0;
    std::uint32_t capacity_units = 0, num_assigned = 0, num_ready = 0;
    // [num_units]: UnitFlag bits of each unit; empty before join()
    std::vector<std::uint8_t> units;
    // the placement wants this worker to hold units that it was not ordered to load yet
    bool assign_pending = false;
    // units that the worker will be ordered to load after its present ones
    std::uint32_t num_later = 0;
    std::uint32_t told_later = 0;   // value of num_later in the worker's latest order
    std::uint32_t loads_ahead = 0;  // most units that may be ordered and not yet loaded
    TimePoint told_at{};            // time of the worker's latest order with units
    // time of the worker's latest READY, or of the first order that is not loaded
    TimePoint loading_since{};
    std::uint32_t times_stuck = 0;           // how often the worker missed the deadline of loading
    std::optional<TimePoint> room_again_at;  // until this time the worker gets no new unit

    std::uint32_t num_loading() const { return num_assigned - num_ready; }
    std::uint32_t num_planned() const { return num_assigned + num_later; }
    bool has(std::uint32_t unit, UnitFlag flag) const { return (units[unit] & flag) != 0; }
};

// An order to one worker. An order without units only reports a new value of `num_later`.
struct UnitOrder {
    WorkerId worker = 0;
    bool release = false;  // true: the worker releases these units; false: it loads and holds them
    std::vector<std::uint32_t> units;  // units, in the order in which the worker fetches them
};

struct UnitDirectoryOptions {
    PlacementOptions placement;
    // `load_within`: how long a worker with units to load may send no READY. `load_again_after`:
    // when a worker that missed this deadline may try again; the time doubles with each further
    // miss.
    Duration load_within = 30s, load_again_after = 60s;
    // `return_within`: how long the place of a lost worker is kept. `uncovered_within`: the same
    // for units that no other worker has ready.
    Duration return_within = 20s, uncovered_within = 250ms;
    // Rate and burst of moves; only moves of units that their owner has loaded count.
    double moves_per_s = 16, moves_at_once = 64;
    // Most units that a new worker is ordered to load before it has loaded any. The limit grows for
    // a worker that loads half of it in less than a quarter of a second.
    std::uint32_t loads_ahead = 512;
    // Returns true if the holder is in service. When copies are released, copies at holders out of
    // service do not count.
    std::function<bool(const UnitHolder&)> serves;
};

class UnitDirectory {
  public:
    using Units = std::span<const std::uint32_t>;

    explicit UnitDirectory(UnitDirectoryOptions options);

    // ---- events
    // `member.worker` is holder.id; the holder must exist until leave(). join(), leave() and
    // on_ready() report facts; settle() then creates the orders that follow from these facts. A
    // worker that left and may return gets its place back by its ring key.
    void join(UnitHolder& holder, const PlacementMember& member, TimePoint now);
    void leave(UnitHolder& holder, bool may_return, TimePoint now);
    void settle(TimePoint now);
    // Sets the layer that is needed next: the layer of `unit`. The layers after it are needed in
    // their order. Units without a holder are ordered in this sequence.
    void needs_layer_of(std::uint32_t unit) { needed_first_ = unit; }
    // The caller calls wake() at the time that wake_at() returns.
    void wake(TimePoint now);
    std::optional<TimePoint> wake_at() const;
    // Handles READY for `units`. Returns true if any of the units was not ready before.
    bool on_ready(UnitHolder& holder, Units units, TimePoint now);
    // The worker did not have these units when a group requested them. No further group requests
    // them from this worker before its next READY. With `again` the worker is ordered once more to
    // hold the units.
    void on_missing(UnitHolder& holder, Units units, bool again, TimePoint now);
    // The worker's capacity has changed. The worker has already released the units `dropped`. If
    // that is too few, the worker gives up units that it has not loaded, then units that others
    // have ready, then any others.
    void on_budget(UnitHolder& holder, std::uint32_t capacity_units, Units dropped, TimePoint now);
    // Returns the units assigned to the worker that another worker in service has ready. O(units).
    std::vector<std::uint32_t> held_elsewhere(const UnitHolder& holder) const;
    // The worker is about to leave: its units are assigned to other workers. It keeps the units
    // that only it has ready until another worker has them. No request needs its other units, and
    // it is not told to release them, since it ends.
    void hand_over(UnitHolder& holder, TimePoint now);
    // Returns true while a worker that hands its units over has a unit ready that no other worker
    // in service has, and another worker shall hold that unit.
    bool is_handing_over(const UnitHolder& holder) const;
    // The worker has no space: the units that it has not loaded are assigned to other workers.
    void on_no_space(UnitHolder& holder, TimePoint now) { take_back_unloaded(holder, now); }
    // Called periodically. Checks the deadline of loading, and gives a worker that missed it
    // earlier another chance. `capacity_units`: number of units that fit the worker's memory.
    void check_loading(UnitHolder& holder, std::uint32_t capacity_units, TimePoint now);

    // Adds one more copy of the unit at a worker that has room, is in service, and has nothing else
    // to load. Returns false if there is no such worker, or if any unit lacks a copy. The caller
    // then calls settle().
    bool add_extra(std::uint32_t unit);
    void take_extra(std::uint32_t unit) { placement_.take_extra(unit, changes_); }
    const std::set<std::uint32_t>& extras() const { return placement_.extras(); }

    // With `on`, the holder at this place on the hash ring is pinned: no unit moves from it to a
    // newcomer.
    void pin(std::uint64_t ring_key, bool on) { placement_.pin(ring_key, on); }
    bool is_pinned(std::uint64_t ring_key) const { return placement_.is_pinned(ring_key); }

    // Returns the orders since the last call, in order.
    std::vector<UnitOrder> take_orders() { return std::exchange(orders_, {}); }

    // ---- state
    std::uint32_t num_units() const { return static_cast<std::uint32_t>(ready_.size()); }
    std::span<UnitHolder* const> holders(std::uint32_t unit) const { return holders_[unit]; }
    std::span<UnitHolder* const> ready(std::uint32_t unit) const { return ready_[unit]; }
    // Returns the time at which a worker last ceased to hold or load the unit; TimePoint{} if no
    // worker ever did so.
    TimePoint held_until(std::uint32_t unit) const { return held_until_[unit]; }
    // Returns true if the placement wants a connected worker to hold the unit, even if that worker
    // was not ordered to load it yet.
    bool is_awaited(std::uint32_t unit) const;
    // Returns true if a lost worker that keeps its place had the unit.
    bool may_return(std::uint32_t unit) const;
    const Placement& placement() const { return placement_; }
    // Returns true while units are still to be moved between workers, or to be assigned.
    bool is_unsettled() const { return placement_.unbalanced() || fill_at_ || loads_at_; }
    // Returns the violated invariants of this holder. O(units). `settled`: all wishes of the
    // placement should have become orders.
    std::vector<std::string> check(const UnitHolder& holder, bool settled) const;

  private:
    PlacementOptions placement_options() const;
    bool awaits_groups() const;
    void order(const UnitHolder& holder, bool release, Units units);
    void release_surplus_of_touched(TimePoint now);
    void release_surplus(std::uint32_t unit, TimePoint now, std::vector<UnitHolder*>& freed);
    void assign_wanted(UnitHolder& holder, TimePoint now);
    void assign(UnitHolder& holder, std::uint32_t unit, TimePoint now);
    void tell_more(UnitHolder& holder) const;
    void adapt_ahead(UnitHolder& holder, TimePoint now) const;
    void tell_what_is_to_come();
    std::uint32_t needed_after(std::uint32_t unit) const;
    void mark_not_ready(UnitHolder& holder, std::uint32_t unit, TimePoint now);
    void unassign(UnitHolder& holder, std::uint32_t unit, TimePoint now);
    void take_back_unloaded(UnitHolder& holder, TimePoint now);
    void set_capacity(UnitHolder& holder, std::uint32_t capacity_units, Units spare, TimePoint now);
    struct Away {  // a lost worker that keeps its place
        WorkerId id = 0;
        std::uint64_t ring_key = 0;
        // look_at: time at which units that no other worker has ready are reassigned
        TimePoint until{}, look_at{};
    };
    void keep_place(const UnitHolder& holder, TimePoint now);
    bool is_covered(std::uint32_t unit) const;
    bool is_covered_without(const UnitHolder& holder, std::uint32_t unit) const;
    bool give_uncovered(const Away& away);
    void rebalance(TimePoint now);

    UnitDirectoryOptions options_;
    Placement placement_;
    // ordered by worker id, so that an iteration gives the same result on every run
    std::map<WorkerId, UnitHolder*> members_;
    // [num_units]: workers that were ordered to hold each unit; workers that reported READY for it
    std::vector<std::vector<UnitHolder*>> holders_, ready_;
    std::vector<TimePoint> held_until_;     // [num_units]: see held_until()
    std::vector<PlacementChange> changes_;  // changes that settle() has not turned into orders yet
    // units of which surplus holders may now release their copies
    std::vector<std::uint32_t> touched_;
    std::vector<UnitOrder> orders_;
    std::vector<Away> away_;
    TimePoint many_left_until_{};        // until this time no place of a lost worker is kept
    std::optional<TimePoint> loads_at_;  // earliest time of the next order to load units
    std::uint32_t needed_first_ = 0;
    double moves_saved_ = 0;
    TimePoint moves_at_{}, balance_at_{};
    // Time at which units that no newcomer has cached are assigned: once no more workers have
    // joined for a moment. Workers that report cached units arrive together, and so do the first
    // workers of groups.
    std::optional<TimePoint> fill_at_;
    TimePoint fill_at_most_{};
};

}  // namespace moex
