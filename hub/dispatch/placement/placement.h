// Which workers shall hold which units, a unit being one (layer, expert).
// Owns the wish alone: what a worker has loaded is worker_pool's to know,
// and moving a unit without losing its last ready copy is the core's work.
//
// What it is after, in this order, each held against the ones after it by check():
//   1. every unit once: a second copy gives way to a unit that has none;
//   2. every unit `replicas` times, on different workers, and on different address prefixes where
//      load allows;
//   3. few workers a layer, so that a row's experts are few frames;
//   4. loads near the fair share;
//   5. few moves.
// What many leave with nobody is spread evenly over those who stay, at the cost of 3: the sooner it
// is loaded.
// A unit that many ask for may have one copy more (an extra), where nothing lacks one. It gives way
// to whatever lacks one.
//
// Consistent hashing with virtual nodes decides preference: a layer is one point on the ring, its
// units go to those who have others of it and then clockwise. Bounded load (110 % of a worker's
// fair share by capacity) decides balance. The assignment is sticky: a leave moves only what the
// leaver held. A join fills what lacks copies; the newcomer's share comes by rebalance(), as fast
// as the caller lets it: layer by layer from the fullest, so that no layer is cut without need.
// Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018.
//
// So it is with PlacementRule::fan_out. Of the others `hash` has 1, 2, 4 and 5, each unit for
// itself; `groups` has 1 and 2, and for 3 and 4 that a layer lies with its group alone as far as
// there is room, evenly among its workers. A group is as large as any other, or by one; what its
// workers have no room for lies elsewhere until they have.
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
    std::uint32_t layer_units = 1;  // so many in a row are one layer's
    std::uint32_t replicas = 2;
    double load_bound = 1.10;  // of the fair share
    std::uint64_t seed = 1;
    PlacementChoice choice = {};
    // Whether somebody who shall hold a unit has it; without it nobody has any.
    std::function<bool(WorkerId owner, std::uint32_t unit)> is_loaded = {};
    // Whether anybody ever had it; without it nobody had.
    std::function<bool(std::uint32_t unit)> was_held = {};
};

struct PlacementMember {
    WorkerId worker = 0;
    // stable over reconnects: the same tab gets much the same units again
    std::uint64_t ring_key = 0;
    std::uint32_t capacity_units = 0;  // what its budget holds
    std::uint64_t address_prefix = 0;
    std::vector<bool> cached = {};  // [num_units] it needs no download of these; empty: of none
};

struct PlacementChange {
    WorkerId worker = 0;
    std::uint32_t unit = 0;
    bool added = false;  // or taken away
    bool operator==(const PlacementChange&) const = default;
};

// /24 of an IPv4 address, /64 of an IPv6 one, as an
// opaque number; the hash of the text for anything else.
std::uint64_t address_prefix(std::string_view address);
// What one person usually holds: an IPv4 address, or an IPv6 /64.
std::uint64_t address_owner(std::string_view address);
// splitmix64's finaliser over both: a cheap, well mixed hash, the same on every machine.
std::uint64_t mix_hash(std::uint64_t a, std::uint64_t b);
std::uint64_t text_hash(std::string_view text);

class Placement {
  public:
    explicit Placement(PlacementOptions options);

    // Appends what changed: copies for units that lack them, of which the newcomer gets those that
    // it has cached. With `fill` everybody gets what still lacks copies, else fill() does.
    // O(units).
    void join(const PlacementMember& member, std::vector<PlacementChange>& changes,
              bool fill = true);
    void fill(std::vector<PlacementChange>& changes) { fill_missing(changes); }
    void leave(WorkerId worker, std::vector<PlacementChange>& changes);
    // Moves units towards the fair shares of those who joined or were resized: at most `moves_max`
    // of those for which is_loaded() says that the owner has them and that the newcomer has not
    // cached; the others cost nothing. How many such it moved; O(units) a member.
    // Nothing is left to do once unbalanced() says false.
    std::uint32_t rebalance(std::uint32_t moves_max, std::vector<PlacementChange>& changes);
    bool unbalanced() const { return unbalanced_; }
    // `to` comes in the place of `from`, whom nobody hears of any more: it is given the same units,
    // as far as its capacity goes.
    void rename(WorkerId from, const PlacementMember& to, std::vector<PlacementChange>& changes);
    // Another capacity for a member. It keeps what still fits: what must go is taken
    // from `spare` first, in that order. O(units).
    void resize(WorkerId worker, std::uint32_t capacity_units, std::span<const std::uint32_t> spare,
                std::vector<PlacementChange>& changes);

    // One copy more than `replicas` for a unit that has these, at somebody who has room and for
    // whom `may_take` holds; a stranger's address prefix before others, who holds others of its
    // layer before who holds none. False: nobody, or a unit lacks a copy, or shares are not even
    // yet.
    bool add_extra(std::uint32_t unit, const std::function<bool(WorkerId)>& may_take,
                   std::vector<PlacementChange>& changes);
    // Takes it back, from whoever has not loaded it first, then from who came last to it.
    void take_extra(std::uint32_t unit, std::vector<PlacementChange>& changes);
    const std::set<std::uint32_t>& extras() const { return extras_; }
    // What is not as extras must be: for a core's invariants, at any time. O(units).
    std::vector<std::string> check_extras() const;

    // rebalance() takes nothing from who has this ring key, now or when it joins again. A second
    // copy of its still gives way to a unit that has none.
    void pin(std::uint64_t ring_key, bool on);
    bool is_pinned(std::uint64_t ring_key) const { return pinned_.contains(ring_key); }

    std::span<const WorkerId> owners(std::uint32_t unit) const { return owners_[unit]; }
    std::uint32_t load(WorkerId worker) const;
    // What the worker should hold by its share of all capacity.
    double fair_share(WorkerId worker) const;
    std::size_t num_members() const { return members_.size(); }
    // Holders of something of it, mean over the layers.
    double workers_per_layer() const;
    // Of `groups`: whether the unit is the worker's group's. By other rules each is at home.
    bool is_home(WorkerId worker, std::uint32_t unit) const;
    // Of `groups`: units that nobody of their group is to hold.
    std::uint32_t num_away() const;
    // What is not as the objective wants it, or not as the counts say; empty unless this is wrong.
    std::vector<std::string> check() const;

  private:
    struct Member;
    struct Fragment {  // of a layer: what a newcomer may take over from one who has it
        Member* donor = nullptr;
        std::uint32_t layer = 0;
        std::uint64_t distance = 0;        // from the layer to the newcomer on the ring
        std::vector<std::uint32_t> units;  // taken from the end
        std::uint32_t num_spread = 0;      // of them, so many would lie on fewer address prefixes
        std::uint32_t num_cached = 0;
    };
    struct Member {
        PlacementMember given;
        std::uint32_t capacity = 0;  // at most num_units
        std::uint32_t load = 0;
        std::vector<std::uint32_t> layer_load;  // [num_layers]
        std::vector<std::uint64_t> points;
        bool wants_share = false;  // it joined or was resized
        bool is_pinned = false;
        std::uint32_t group = 0;    // of `groups`
        std::uint32_t to_load = 0;  // of fill_lost(): units that nobody has loaded, it first
        // Scratch of one take_share: its fragments, and how full it is beside its fair share.
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

    // placement_extras.cpp
    void take_unloaded_extras(std::vector<PlacementChange>& changes);

    // placement_rules.cpp
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
    std::set<std::uint64_t> pinned_;                        // ring keys
    std::vector<std::pair<std::uint64_t, WorkerId>> ring_;  // sorted
    std::vector<std::uint64_t> unit_points_;                // [num_units]
    std::vector<std::vector<WorkerId>> owners_;             // [num_units]
    // [num_units], beside owners_: a join asks for each of them.
    std::vector<std::vector<Member*>> owner_members_;
    std::vector<std::vector<Member*>> layer_members_;  // [num_layers] who holds something of it
    std::vector<std::uint32_t> missing_;               // units that may lack a copy
    std::set<std::uint32_t> extras_;                   // units with more than `replicas` owners
    bool unbalanced_ = false;
    bool spreads_lost_ = false;
    // Scratch of one take_share: by layer, kept for their memory.
    std::vector<Fragment> fragments_;
    std::vector<std::uint32_t> layer_begin_;  // [num_layers + 1] into fragments_
    std::uint64_t capacity_total_ = 0, load_total_ = 0;
};

}  // namespace moex
