// Which workers shall hold which units, a unit being one (layer, expert).
// Owns the wish alone: what a worker has loaded is worker_pool's to know,
// and moving a unit without losing its last ready copy is the core's work.
//
// What it is after, in this order: every unit once; every unit `replicas` times, on different
// workers, and on different address prefixes where load allows; loads near the fair share; few
// moves. A second copy gives way to a unit that has none.
//
// Consistent hashing with virtual nodes decides preference; bounded
// load (110 % of a worker's fair share by capacity) decides balance.
// The assignment is sticky: a leave moves only what the leaver held,
// a join only the newcomer's share, taken from the fullest (and,
// where capacity was scarce, what still lies above a member's bound).
// Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace moex {

using WorkerId = std::uint64_t;

struct PlacementOptions {
    std::uint32_t num_units = 0;
    std::uint32_t replicas = 2;
    double load_bound = 1.10;  // of the fair share
    std::uint64_t seed = 1;
};

struct PlacementMember {
    WorkerId worker = 0;
    // stable over reconnects: the same tab gets much the same units again
    std::uint64_t ring_key = 0;
    std::uint32_t capacity_units = 0;  // what its budget holds
    std::uint64_t address_prefix = 0;
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

    // Appends what changed. A join costs O(units) and a
    // heap per donor; a leave visits no unit that stays.
    void join(const PlacementMember& member, std::vector<PlacementChange>& changes);
    void leave(WorkerId worker, std::vector<PlacementChange>& changes);
    // Another capacity for a member. It keeps what still fits: what must go is taken
    // from `spare` first, in that order. O(units).
    void resize(WorkerId worker, std::uint32_t capacity_units, std::span<const std::uint32_t> spare,
                std::vector<PlacementChange>& changes);

    std::span<const WorkerId> owners(std::uint32_t unit) const { return owners_[unit]; }
    std::uint32_t load(WorkerId worker) const;
    // What the worker should hold by its share of all capacity.
    double fair_share(WorkerId worker) const;
    std::size_t num_members() const { return members_.size(); }

  private:
    struct Candidate {           // a unit that a newcomer may take over
        bool spreads_prefixes;   // fewer copies on one prefix afterwards
        std::uint64_t distance;  // from the unit to the newcomer on the ring
        std::uint32_t unit;
    };
    struct Member {
        PlacementMember given;
        std::uint32_t capacity = 0;  // at most num_units
        std::uint32_t load = 0;
        std::vector<std::uint64_t> points;
        // scratch of one take_share: what this one could give
        std::vector<Candidate> candidates;
        // candidates is a heap; made when the first is taken
        bool is_heap = false;
    };
    double fair(const Member& member) const;
    std::uint32_t bound(const Member& member) const;
    std::uint32_t collisions(std::uint32_t unit, WorkerId without, std::uint64_t prefix) const;
    void own(Member& member, std::uint32_t unit, std::vector<PlacementChange>& changes);
    void disown(Member& member, std::uint32_t unit, std::vector<PlacementChange>& changes);
    void add_points(Member& member);
    void fill_missing(std::vector<PlacementChange>& changes);
    Member* choose_owner(std::uint32_t unit);
    Member* make_way(std::uint32_t unit, std::uint32_t copy, std::uint32_t& donor,
                     std::vector<std::uint32_t>& gave_way, std::vector<PlacementChange>& changes);
    void take_share(Member& newcomer, std::vector<PlacementChange>& changes);
    void shed_above_bound(std::vector<PlacementChange>& changes);

    PlacementOptions options_;
    std::map<WorkerId, Member> members_;
    std::vector<std::pair<std::uint64_t, WorkerId>> ring_;  // sorted
    std::vector<std::uint64_t> unit_points_;                // [num_units]
    std::vector<std::vector<WorkerId>> owners_;             // [num_units]
    // [num_units], beside owners_: a join asks for each of them.
    std::vector<std::vector<Member*>> owner_members_;
    std::vector<std::uint32_t> missing_;  // units that may lack a copy
    std::uint64_t capacity_total_ = 0, load_total_ = 0;
};

}  // namespace moex
