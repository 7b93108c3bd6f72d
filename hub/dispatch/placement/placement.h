// Decides which workers shall hold which units; a unit is one (layer, expert). The placement is
// only a wish. unit_directory knows which units a worker has loaded, and moves a unit without
// losing its last ready copy.
//
// The goals, the most important first; check() tests that none is violated for the sake of a later
// one:
//   1. every unit once: a second copy gives way to a unit without a copy;
//   2. every unit `replicas` times, on different workers, and on different address prefixes where
//      load allows;
//   3. few workers per layer, so that the experts of a row need few frames;
//   4. loads near the fair share;
//   5. few moves.
// Units that a mass leave left without a holder are spread evenly over the remaining workers, at
// the cost of goal 3, because they are loaded sooner that way. A popular unit may have one more
// copy (an extra) while no unit lacks a copy. The extra copy gives way to any unit that lacks a
// copy.
//
// Consistent hashing with virtual nodes decides preference: a layer is one point on the ring, and
// its units go to workers that have other units of the layer, then to the next workers clockwise on
// the ring. Bounded load (110 % of a worker's fair share by capacity) decides balance. The
// assignment is sticky: a leave moves only the units of the worker that left. A join fills units
// that lack copies. The newcomer's share arrives through rebalance(), as fast as the caller
// permits: layer by layer from the fullest workers, so that no layer is split without need. Source:
// Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018.
//
// The text above describes PlacementRule::fan_out. The rule `hash` has goals 1, 2, 4 and 5, and
// places each unit independently. The rule `groups` has goals 1 and 2. Instead of goals 3 and 4, a
// layer is held by its group of workers alone as far as the group has room, evenly among these
// workers. Group sizes differ by at most one. Units for which a group has no room are held by other
// workers until the group has room.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/dispatch/ids.h"
#include "hub/dispatch/placement/placement_rule.h"

namespace moex {

struct PlacementOptions {
    std::uint32_t num_units = 0;
    std::uint32_t layer_units = 1;  // number of consecutive units that form a layer
    std::uint32_t replicas = 2;
    double load_bound = 1.10;  // largest load of a worker, as a multiple of its fair share
    std::uint64_t seed = 1;
    PlacementChoice choice = {};
    // Returns true if `owner` has loaded the unit. If the function is empty, no worker counts as
    // having loaded any unit.
    std::function<bool(WorkerId owner, std::uint32_t unit)> is_loaded = {};
    // Returns true if any worker ever had the unit. If the function is empty, no unit counts as
    // ever held.
    std::function<bool(std::uint32_t unit)> was_held = {};
};

struct PlacementMember {
    WorkerId worker = 0;
    // The worker's key on the hash ring. It is stable over reconnects, so that a returning tab gets
    // nearly the same units again.
    std::uint64_t ring_key = 0;
    std::uint32_t capacity_units = 0;  // number of units that fit the worker's memory budget
    std::uint64_t address_prefix = 0;
    // [num_units]: true for units that the worker need not download; empty: it has none
    std::vector<bool> cached = {};
};

struct PlacementChange {
    WorkerId worker = 0;
    std::uint32_t unit = 0;
    bool added = false;  // true: the worker gets the unit; false: it loses the unit
    bool operator==(const PlacementChange&) const = default;
};

// Returns the /24 of an IPv4 address or the /64 of an IPv6 address, as an opaque number. For any
// other text it returns a hash of the text.
std::uint64_t address_prefix(std::string_view address);
// Returns the address range that one person usually owns, as an opaque number: an IPv4 address, or
// an IPv6 /64.
std::uint64_t address_owner(std::string_view address);
// Hashes both arguments with the finaliser of splitmix64: cheap, well mixed, and the same on every
// machine.
std::uint64_t mix_hash(std::uint64_t a, std::uint64_t b);
std::uint64_t text_hash(std::string_view text);

class Placement {
  public:
    explicit Placement(PlacementOptions options);

    // Adds a member and appends the changes. Of the units that lack copies, the newcomer first gets
    // those that it has cached. With `fill` the other missing copies are assigned at once,
    // otherwise by a later call of fill(). O(units).
    void join(const PlacementMember& member, std::vector<PlacementChange>& changes,
              bool fill = true);
    void fill(std::vector<PlacementChange>& changes) { fill_missing(changes); }
    void leave(WorkerId worker, std::vector<PlacementChange>& changes);
    // Moves units towards the fair shares of members that joined or were resized. At most
    // `moves_max` moves count; a move counts if the old owner has loaded the unit (see is_loaded())
    // and the newcomer has not cached it. Other moves are free. Returns the number of counted
    // moves. O(units) per member. Nothing is left to do once unbalanced() returns false.
    std::uint32_t rebalance(std::uint32_t moves_max, std::vector<PlacementChange>& changes);
    bool unbalanced() const { return unbalanced_; }
    // Replaces member `from`, which lost its connection, by `to`, which gets the same units as far
    // as its capacity allows.
    void rename(WorkerId from, const PlacementMember& to, std::vector<PlacementChange>& changes);
    // Changes a member's capacity. The member keeps the units that still fit; units in `spare` are
    // removed first, in that order. O(units).
    void resize(WorkerId worker, std::uint32_t capacity_units, std::span<const std::uint32_t> spare,
                std::vector<PlacementChange>& changes);

    // Gives a unit with `replicas` copies one more copy. The new owner is a member that has room
    // and for which `may_take` returns true. Members with another address prefix are preferred,
    // then members that hold other units of the layer. Returns false if there is no such member, if
    // any unit lacks a copy, or while the shares of the members are not yet even.
    bool add_extra(std::uint32_t unit, const std::function<bool(WorkerId)>& may_take,
                   std::vector<PlacementChange>& changes);
    // Removes the extra copy of the unit: if possible from a member that has not loaded it,
    // otherwise from the newest owner.
    void take_extra(std::uint32_t unit, std::vector<PlacementChange>& changes);
    const std::set<std::uint32_t>& extras() const { return extras_; }
    // Returns the violated invariants of extra copies. The core may check them at any time.
    // O(units).
    std::vector<std::string> check_extras() const;

    // Pins a member: rebalance() takes no unit from the member with this ring key, now or after it
    // joins again. A second copy at that member still gives way to a unit without a copy.
    void pin(std::uint64_t ring_key, bool on);
    bool is_pinned(std::uint64_t ring_key) const { return pinned_.contains(ring_key); }

    std::span<const WorkerId> owners(std::uint32_t unit) const { return owners_[unit]; }
    std::uint32_t load(WorkerId worker) const;
    // Returns the number of units that the worker should hold, in proportion to its share of the
    // total capacity.
    double fair_share(WorkerId worker) const;
    std::size_t num_members() const { return members_.size(); }
    // Returns how many workers hold units of a layer, as a mean over the layers.
    double workers_per_layer() const;
    // With the rule `groups`: returns true if the unit belongs to the worker's group. With the
    // other rules it is true for every unit.
    bool is_home(WorkerId worker, std::uint32_t unit) const;
    // With the rule `groups`: the number of units that no worker of their own group shall hold.
    std::uint32_t num_away() const;
    // Returns the goals that are violated and the counts that are wrong; empty unless this class
    // has a bug.
    std::vector<std::string> check() const;

  private:
    struct Member;
    struct Fragment {  // units of one layer that a newcomer may take from one donor
        Member* donor = nullptr;
        std::uint32_t layer = 0;
        std::uint64_t distance = 0;        // distance on the ring from the layer to the newcomer
        std::vector<std::uint32_t> units;  // units are taken from the end of this list
        // units that would share their address prefix with fewer other copies after the move
        std::uint32_t num_spread = 0;
        std::uint32_t num_cached = 0;
    };
    struct Member {
        PlacementMember given;
        std::uint32_t capacity = 0;  // units that the member may hold, at most num_units
        std::uint32_t load = 0;
        // [num_layers]: units of each layer that the member holds
        std::vector<std::uint32_t> layer_load;
        std::vector<std::uint64_t> points;
        // the member joined or was resized, and rebalance() has not served it yet
        bool wants_share = false;
        bool is_pinned = false;
        std::uint32_t group = 0;  // with the rule `groups`: number of the member's group
        // Scratch of fill_lost(): number of units that this member is still to load, and that no
        // other worker holds.
        std::uint32_t to_load = 0;
        // Scratch of take_share(): the member's fragments, its fair share, and its load as a
        // fraction of that share.
        std::vector<std::uint32_t> fragments;
        double fair = 0, fill = 0;
    };
    std::uint32_t layer_of(std::uint32_t unit) const { return unit / options_.layer_units; }
    bool owns(const Member& member, std::uint32_t unit) const;
    static bool has_cached(const Member& member, std::uint32_t unit) {
        return !member.given.cached.empty() && member.given.cached[unit];
    }
    double fair(const Member& member) const;
    std::uint32_t share(const Member& member) const;
    std::uint32_t bound(const Member& member) const;
    std::uint32_t collisions(std::uint32_t unit, WorkerId without, std::uint64_t prefix) const;
    void own(Member& member, std::uint32_t unit, std::vector<PlacementChange>& changes);
    void disown(Member& member, std::uint32_t unit, std::vector<PlacementChange>& changes);
    void forget(Member& member, std::uint32_t unit);
    void add_points(Member& member);
    void fill_missing(std::vector<PlacementChange>& changes);
    void fill_lost(std::vector<PlacementChange>& changes);
    bool is_loaded(const Member& owner, std::uint32_t unit) const;
    void give_cached(Member& member, std::vector<PlacementChange>& changes);
    std::uint32_t to_load_most() const;
    bool may_own(const Member& member, std::uint32_t unit, std::uint32_t to_load_max) const;
    Member* choose_owner(std::uint32_t unit, std::uint32_t to_load_max);
    Member* choose_on_ring(std::uint32_t unit, std::uint32_t to_load_max, Member*& same_prefix);
    Member* make_way(std::uint32_t unit, std::uint32_t copy, std::uint32_t to_load_max,
                     std::uint32_t& donor, std::vector<std::uint32_t>& gave_way,
                     std::vector<PlacementChange>& changes);
    struct Donation {
        Fragment* fragment = nullptr;
        std::uint32_t num_units = 0;
        bool is_whole() const { return num_units == fragment->units.size(); }
    };
    void list_fragments(Member& newcomer);
    std::span<Fragment> fragments_of_layer(std::uint32_t layer);
    Donation donation_of(const Member& newcomer, Fragment& fragment) const;
    Donation next_cached(const Member& newcomer);
    Donation next_of_layer(const Member& newcomer, std::uint32_t layer);
    Donation next_of_fullest(const Member& newcomer);
    std::uint32_t take_share(Member& newcomer, std::uint32_t moves_max,
                             std::vector<PlacementChange>& changes);
    std::uint32_t shed_above_bound_most(const Member& member) const {
        return bound(member) + options_.layer_units - 1;
    }
    std::uint32_t shed_above_bound(std::uint32_t moves_max, std::vector<PlacementChange>& changes);

    // ---- placement_extras.cpp
    void take_unloaded_extras(std::vector<PlacementChange>& changes);

    // ---- placement_rules.cpp
    std::uint64_t hash_rank(const Member& member, std::uint32_t unit) const;
    Member* choose_by_hash(std::uint32_t unit, std::uint32_t to_load_max);
    std::uint32_t take_hashed(Member& newcomer, std::uint32_t moves_max,
                              std::vector<PlacementChange>& changes);
    bool is_home(const Member& member, std::uint32_t unit) const;
    std::vector<std::uint32_t> group_sizes() const;
    void enter_group(Member& newcomer);
    void even_groups();
    bool is_better_place(const Member& a, const Member& b, std::uint32_t unit) const;
    Member* choose_in_group(std::uint32_t unit);
    std::uint32_t rebalance_groups(std::uint32_t moves_max, std::vector<PlacementChange>& changes);
    void check_groups(std::vector<std::string>& broken) const;

    PlacementOptions options_;
    std::map<WorkerId, Member> members_;
    std::set<std::uint64_t> pinned_;                        // ring keys of pinned members
    std::vector<std::pair<std::uint64_t, WorkerId>> ring_;  // points of all members, sorted
    std::vector<std::uint64_t> unit_points_;                // [num_units]: point of each unit
    std::vector<std::vector<WorkerId>> owners_;             // [num_units]: owners of each unit
    // [num_units]: owners as pointers, parallel to owners_, because a join reads every entry
    std::vector<std::vector<Member*>> owner_members_;
    // [num_layers]: members that hold units of each layer
    std::vector<std::vector<Member*>> layer_members_;
    std::vector<std::uint32_t> missing_;  // units that may lack a copy
    std::set<std::uint32_t> extras_;      // units with more than `replicas` owners
    bool unbalanced_ = false;
    bool spreads_lost_ = false;
    // Scratch of take_share(): fragments sorted by layer. The vector is kept to reuse its memory.
    std::vector<Fragment> fragments_;
    // [num_layers + 1]: index of the first fragment of each layer in fragments_
    std::vector<std::uint32_t> layer_begin_;
    std::uint64_t capacity_total_ = 0, load_total_ = 0;
};

}  // namespace moex
