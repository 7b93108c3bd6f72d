// The directory of units: which worker shall hold a unit, which was ordered to, and which reported
// READY. It turns the placement's wishes into orders to workers, and the workers' reports into
// routes.
//
// Loading order. Units that no worker holds come before second copies, and the layer that is needed
// next comes first. Therefore a worker is never ordered to load everything at once: it is sent as
// much as its connection downloads in about a second, and the number of units that will follow.
// After a mass leave, orders wait until no more workers have left for a moment.
//
// Make before break. A copy is released only when the workers that shall hold the unit have it. A
// worker that loads nothing of its orders gives them back, and gets another chance later. A worker
// with a broken connection keeps its place for a while, so that nothing has moved when it returns.
// Units that no other worker has ready are reassigned after a moment; where many workers leave at
// once, the directory does not wait. Loaded units move at a bounded rate.
//
// Pure: events and `now` go in, orders come out; no frame, no clock. Owner: the dispatch strand.
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
    std::vector<std::uint8_t> units;  // [num_units] of UnitFlag; empty before join()
    bool assign_pending = false;      // wants units that it has not been ordered to load
    std::uint32_t num_later = 0;      // units to be ordered after it has loaded the current ones
    std::uint32_t told_later = 0;     // value of num_later in its last order
    std::uint32_t loads_ahead = 0;    // most units ordered and not yet loaded
    TimePoint told_at{};              // time of its last order with units
    TimePoint loading_since{};  // time of its last READY, or of the first order that is not loaded
    std::uint32_t times_stuck = 0;  // number of times that it missed the deadline of loading
    std::optional<TimePoint> room_again_at;  // until then it gets no unit that it does not hold

    std::uint32_t num_loading() const { return num_assigned - num_ready; }
    std::uint32_t num_planned() const { return num_assigned + num_later; }
    bool has(std::uint32_t unit, UnitFlag flag) const { return (units[unit] & flag) != 0; }
};

// An order to one worker. Without units it only reports a new `num_later`.
struct UnitOrder {
    WorkerId worker = 0;
    bool release = false;              // true: release these units; false: hold them
    std::vector<std::uint32_t> units;  // in the order in which to fetch them
};

struct UnitDirectoryOptions {
    PlacementOptions placement;
    // How long a loading worker may go without a READY, and when it may try again: after this time,
    // then after twice that, and so on.
    Duration load_within = 30s, load_again_after = 60s;
    // How long the place of a worker that may return is kept; how long for units that no other
    // worker has ready.
    Duration return_within = 20s, uncovered_within = 2s;
    // Rate and burst of moves of units that their owner has loaded.
    double moves_per_s = 16, moves_at_once = 64;
    // Most units that a new worker is ordered to load before it has loaded any. The limit grows
    // where half of it loads in less than a quarter of a second.
    std::uint32_t loads_ahead = 512;
    // Returns true if the holder is in service. A copy at any other holder does not count when
    // copies are released.
    std::function<bool(const UnitHolder&)> serves;
};

class UnitDirectory {
  public:
    using Units = std::span<const std::uint32_t>;

    explicit UnitDirectory(UnitDirectoryOptions options);

    // ---- events
    // `member.worker` is holder.id; the holder must exist until leave(). join(), leave() and
    // on_ready() report facts; settle() then orders what follows from them. A worker that left and
    // may return gets its place back by its ring key.
    void join(UnitHolder& holder, const PlacementMember& member, TimePoint now);
    void leave(UnitHolder& holder, bool may_return, TimePoint now);
    void settle(TimePoint now);
    // Units of this layer are needed next, then those of the layer after it. Units without a holder
    // are ordered in this sequence.
    void needs_layer_of(std::uint32_t unit) { needed_first_ = unit; }
    // Call it at the time of wake_at().
    void wake(TimePoint now);
    std::optional<TimePoint> wake_at() const;
    // Returns true if any of the units was not ready before.
    bool on_ready(UnitHolder& holder, Units units, TimePoint now);
    // The worker did not have these units when it was asked. It is not asked again before its next
    // READY. With `again` it is ordered once more to hold them.
    void on_missing(UnitHolder& holder, Units units, bool again, TimePoint now);
    // The worker has another capacity; it has already released `dropped`.
    void on_budget(UnitHolder& holder, std::uint32_t capacity_units, Units dropped, TimePoint now);
    // The units that it has not loaded are assigned to other workers.
    void on_no_space(UnitHolder& holder, TimePoint now) { take_back_unloaded(holder, now); }
    // Called periodically: checks the deadline of loading, and gives a worker that missed one
    // another chance. `capacity_units`: what fits its memory.
    void check_loading(UnitHolder& holder, std::uint32_t capacity_units, TimePoint now);

    // Adds one more copy of the unit at a worker that has room, serves, and has nothing else to
    // load. Returns false if there is no such worker, or if a unit lacks a copy. Call settle()
    // afterwards.
    bool add_extra(std::uint32_t unit);
    void take_extra(std::uint32_t unit) { placement_.take_extra(unit, changes_); }
    const std::set<std::uint32_t>& extras() const { return placement_.extras(); }

    // With `on` no unit moves from the holder at this place on the ring to a newcomer.
    void pin(std::uint64_t ring_key, bool on) { placement_.pin(ring_key, on); }
    bool is_pinned(std::uint64_t ring_key) const { return placement_.is_pinned(ring_key); }

    // Returns the orders since the last call, in order.
    std::vector<UnitOrder> take_orders() { return std::exchange(orders_, {}); }

    // ---- state
    std::uint32_t num_units() const { return static_cast<std::uint32_t>(ready_.size()); }
    std::span<UnitHolder* const> holders(std::uint32_t unit) const { return holders_[unit]; }
    std::span<UnitHolder* const> ready(std::uint32_t unit) const { return ready_[unit]; }
    // The time at which a worker last ceased to hold or load the unit; TimePoint{}: no worker ever
    // did.
    TimePoint held_until(std::uint32_t unit) const { return held_until_[unit]; }
    // Returns true if a connected worker shall hold the unit, whether it was ordered to or not yet.
    bool is_awaited(std::uint32_t unit) const;
    const Placement& placement() const { return placement_; }
    // Returns the violated invariants of this holder; O(units). `settled`: every wish was ordered.
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
        TimePoint until{}, look_at{};  // look_at: for units that no other worker has ready
    };
    void keep_place(const UnitHolder& holder, TimePoint now);
    bool is_covered(std::uint32_t unit) const;
    bool give_uncovered(const Away& away);
    void rebalance(TimePoint now);

    UnitDirectoryOptions options_;
    Placement placement_;
    // ordered, so that a walk gives the same result on every run
    std::map<WorkerId, UnitHolder*> members_;
    // [num_units]: ordered to hold it; reported READY
    std::vector<std::vector<UnitHolder*>> holders_, ready_;
    std::vector<TimePoint> held_until_;     // [num_units]
    std::vector<PlacementChange> changes_;  // not settled yet
    std::vector<std::uint32_t> touched_;    // units that surplus holders may release now
    std::vector<UnitOrder> orders_;
    std::vector<Away> away_;
    TimePoint many_left_until_{};        // until then no lost worker is waited for
    std::optional<TimePoint> loads_at_;  // earliest time of the next order
    std::uint32_t needed_first_ = 0;
    double moves_saved_ = 0;
    TimePoint moves_at_{}, balance_at_{};
    // Workers that report cached units arrive together, and so do the first workers of groups.
    // Units that no newcomer has cached are assigned once no more workers have joined for a moment.
    std::optional<TimePoint> fill_at_;
    TimePoint fill_at_most_{};
};

}  // namespace moex
