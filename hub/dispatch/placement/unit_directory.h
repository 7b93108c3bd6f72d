// Who shall hold which unit, who was told to, and who said READY: the placement's wishes become
// orders to workers, and what workers say becomes routes.
//
// What nobody holds comes before second copies, and what is needed next before the rest of it. So
// nobody is told at once all that it shall load: a second or so of its line, and how much is to
// come. After a mass leave orders wait until nobody more has left for a moment.
//
// Make before break: a copy is let go only when those who shall hold the unit have it. A worker
// that loads nothing of what it was told to gives it back, and gets another chance later. One whose
// line broke keeps its place for a while: when it is back, nothing has moved. What nobody else can
// answer meanwhile goes to others in a moment, and where many leave at once nobody is waited for.
// Units that somebody has loaded move at a bounded rate.
// Pure: events and `now` in, orders out; no frame, no clock. Owner: the dispatch strand.
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

// One worker's side of it. The directory's own, but for `id`.
struct UnitHolder {
    enum UnitFlag : std::uint8_t { wanted = 1, assigned = 2, ready = 4, cached = 8 };

    WorkerId id = 0;
    std::uint64_t ring_key = 0;
    std::uint32_t capacity_units = 0, num_assigned = 0, num_ready = 0;
    std::vector<std::uint8_t> units;         // [num_units] of UnitFlag; empty before join()
    bool assign_pending = false;             // wants units that it has not been told
    std::uint32_t num_later = 0;             // units that it is told when it has loaded
    std::uint32_t told_later = 0;            // so many it knows of
    std::uint32_t loads_ahead = 0;           // it may be told so many that it has not loaded
    TimePoint told_at{};                     // units, when there were more to come
    TimePoint loading_since{};               // of what it has not said READY of, or its last READY
    std::uint32_t times_stuck = 0;           // it loaded nothing for too long
    std::optional<TimePoint> room_again_at;  // until then it is given what it holds, and no more

    std::uint32_t num_loading() const { return num_assigned - num_ready; }
    std::uint32_t num_planned() const { return num_assigned + num_later; }
    bool has(std::uint32_t unit, UnitFlag flag) const { return (units[unit] & flag) != 0; }
};

// What a worker is to be told. No units: that `num_later` is another one.
struct UnitOrder {
    WorkerId worker = 0;
    bool release = false;              // of units that it was assigned, or else: to hold them
    std::vector<std::uint32_t> units;  // in the order to fetch them
};

struct UnitDirectoryOptions {
    PlacementOptions placement;
    // How long somebody who loads may go without a READY, and when it may try again: after this,
    // then after twice that, and so on.
    Duration load_within = 30s, load_again_after = 60s;
    // How long the place of somebody who may return is kept, and how long that of a unit which
    // nobody else has ready.
    Duration return_within = 20s, uncovered_within = 2s;
    // Of units that their owner has loaded.
    double moves_per_s = 16, moves_at_once = 64;
    // So many units somebody is told to load before it has loaded any of them; more where half
    // of it takes less than a quarter of a second.
    std::uint32_t loads_ahead = 512;
    // Whether a holder is asked: a copy that is not does not count when others are let go.
    std::function<bool(const UnitHolder&)> serves;
};

class UnitDirectory {
  public:
    using Units = std::span<const std::uint32_t>;

    explicit UnitDirectory(UnitDirectoryOptions options);

    // ---- events. `member.worker` is holder.id; the holder must stay until leave().
    // join(), leave() and on_ready() say what is; settle() orders what follows from it.
    // One that left and might return gets its place back by its ring key.
    void join(UnitHolder& holder, const PlacementMember& member, TimePoint now);
    void leave(UnitHolder& holder, bool may_return, TimePoint now);
    void settle(TimePoint now);
    // Units of this layer are needed next, then those of the one after it: what nobody holds is
    // ordered so.
    void needs_layer_of(std::uint32_t unit) { needed_first_ = unit; }
    // When wake_at() has come.
    void wake(TimePoint now);
    std::optional<TimePoint> wake_at() const;
    // True when something of it is new.
    bool on_ready(UnitHolder& holder, Units units, TimePoint now);
    // Asked for these it did not have them: it is not asked again before it says READY, and with
    // `again` it is told once more to hold them.
    void on_missing(UnitHolder& holder, Units units, bool again, TimePoint now);
    // Another capacity; `dropped` are let go of already.
    void on_budget(UnitHolder& holder, std::uint32_t capacity_units, Units dropped, TimePoint now);
    // What it has not loaded goes to others.
    void on_no_space(UnitHolder& holder, TimePoint now) { take_back_unloaded(holder, now); }
    // From time to time: deadlines of loading, and another chance for who missed one.
    // `capacity_units`: what its memory holds.
    void check_loading(UnitHolder& holder, std::uint32_t capacity_units, TimePoint now);

    // One more copy of the unit than others have, at somebody who has room, serves, and has nothing
    // else to load. False: there is nobody, or something lacks a copy. settle() follows.
    bool add_extra(std::uint32_t unit);
    void take_extra(std::uint32_t unit) { placement_.take_extra(unit, changes_); }
    const std::set<std::uint32_t>& extras() const { return placement_.extras(); }

    // What the holder of this place on the ring has moves to no newcomer.
    void pin(std::uint64_t ring_key, bool on) { placement_.pin(ring_key, on); }
    bool is_pinned(std::uint64_t ring_key) const { return placement_.is_pinned(ring_key); }

    // Orders since the last call, in order.
    std::vector<UnitOrder> take_orders() { return std::exchange(orders_, {}); }

    // ---- state
    std::uint32_t num_units() const { return static_cast<std::uint32_t>(ready_.size()); }
    std::span<UnitHolder* const> holders(std::uint32_t unit) const { return holders_[unit]; }
    std::span<UnitHolder* const> ready(std::uint32_t unit) const { return ready_[unit]; }
    // When a worker last ceased to hold or load it; TimePoint{}: nobody ever did.
    TimePoint held_until(std::uint32_t unit) const { return held_until_[unit]; }
    // Whether somebody who is there is to hold it, told so already or not.
    bool is_awaited(std::uint32_t unit) const;
    const Placement& placement() const { return placement_; }
    // What is not as it must be of this holder; O(units). `settled`: every wish was ordered.
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
    struct Away {  // somebody whose place is kept
        WorkerId id = 0;
        std::uint64_t ring_key = 0;
        TimePoint until{}, look_at{};  // for units that nobody else has ready
    };
    void keep_place(const UnitHolder& holder, TimePoint now);
    bool is_covered(std::uint32_t unit) const;
    bool give_uncovered(const Away& away);
    void rebalance(TimePoint now);

    UnitDirectoryOptions options_;
    Placement placement_;
    // ordered: what follows from a walk is the same on every run
    std::map<WorkerId, UnitHolder*> members_;
    std::vector<std::vector<UnitHolder*>> holders_, ready_;  // [num_units] assigned; said READY
    std::vector<TimePoint> held_until_;                      // [num_units]
    std::vector<PlacementChange> changes_;                   // not settled yet
    std::vector<std::uint32_t> touched_;  // units whose surplus holders may go now
    std::vector<UnitOrder> orders_;
    std::vector<Away> away_;
    TimePoint many_left_until_{};        // nobody is waited for
    std::optional<TimePoint> loads_at_;  // nothing is ordered before this
    std::uint32_t needed_first_ = 0;
    double moves_saved_ = 0;
    TimePoint moves_at_{}, balance_at_{};
    // Those who say what they have cached come together, and the first workers of groups: what
    // nobody of them has is given out once nobody more has come for a moment.
    std::optional<TimePoint> fill_at_;
    TimePoint fill_at_most_{};
};

}  // namespace moex
