// Chooses the workers that compute the open slices of a round: a cover by few groups.
//
// The algorithm is a greedy set cover. It repeatedly picks the worker that can take the most of the
// remaining slices, up to its share; ties go to the worker with fewer groups in flight, then to the
// one with less recent work. Shares follow predicted latency, so that all workers finish a large
// round at about the same time. A worker that needs three times as long as the median worker has no
// share: it computes only slices that no other worker can take. Example: slices 0 to 3, worker 1
// holds the experts of all four, worker 2 of only two: worker 1 gets one group {0,1,2,3}. The class
// is pure: workers and slices go in, groups come out. It keeps its vectors from round to round.
// Source: Chvatal, "A Greedy Heuristic for the Set-Covering Problem", 1979.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "hub/dispatch/placement/placement.h"

namespace moex {

// A worker that may be sent a group now.
struct RouteWorker {
    WorkerId id = 0;
    std::uint32_t num_live = 0;  // number of groups in flight to the worker
    double work = 0;             // work that was sent to the worker recently, see Worker::work
    // The worker is less preferred: it was overdue and has answered nothing since, or its share of
    // use (POWER) leaves this pass out.
    bool stalls = false;
    double pace_ms = 0;  // predicted latency of a group with Router::pairs_each() pairs, in ms
};
struct RouteGroup {
    std::uint32_t worker = 0;           // number from add_worker()
    std::vector<std::uint32_t> slices;  // numbers from add_slice(), in any order
    std::uint32_t num_pairs = 0;
};

class Router {
  public:
    // Least size of a round that is split for the sake of balance.
    static constexpr std::uint32_t share_pairs_min = 64;

    void begin();
    // Adds a worker and returns its number: 0, 1, ...
    std::uint32_t add_worker(const RouteWorker& worker);
    // Adds a slice. `takers`: the numbers of the workers that can take the slice. Slices are
    // assigned in the order in which they were added.
    void add_slice(std::uint32_t slice, std::uint32_t num_pairs,
                   std::span<const std::uint32_t> takers);

    // Number of pairs per worker if the round were split evenly. Paces are predicted for groups of
    // this size.
    std::uint32_t pairs_each() const;
    void set_pace(std::uint32_t number, double pace_ms) {
        workers_[number].given.pace_ms = pace_ms;
    }

    // Returns the chosen groups, at most one per worker. The span is valid until begin(). O(p log
    // p) for p pairs of (slice, taker).
    std::span<const RouteGroup> cover();
    // Appends the slices that no worker took, in the order of add_slice().
    void append_left(std::vector<std::uint32_t>& slices) const;

  private:
    struct Candidate {
        RouteWorker given;
        // number of pairs in the unassigned slices that the worker can take
        std::uint32_t gain_pairs = 0;
        std::uint32_t share_pairs = 0;
        std::int32_t group = -1;
        bool is_slow = false;
        std::uint32_t slices_begin = 0, slices_end = 0;  // range in slices_of_
    };
    struct Item {
        std::uint32_t slice = 0, num_pairs = 0;
        std::uint32_t takers_begin = 0, takers_end = 0;  // range in takers_
        bool given = false;
    };
    using Key = std::tuple<std::uint32_t, std::uint32_t, double, WorkerId>;

    std::span<const std::uint32_t> takers_of(const Item& item) const {
        return std::span(takers_).subspan(item.takers_begin, item.takers_end - item.takers_begin);
    }
    Key key_of(const Candidate& candidate) const;
    void share_out();
    void list_slices();
    void cover_with(bool slow);
    void give_rest();
    void give(Item& item, RouteGroup& group);

    std::vector<Candidate> workers_;
    std::vector<Item> items_;
    // workers that can take an item, for all items in their order
    std::vector<std::uint32_t> takers_;
    std::vector<std::uint32_t> slices_of_;  // for each worker: items that it can take
    std::vector<double> paces_;
    std::vector<std::pair<Key, std::uint32_t>> heap_;
    std::vector<RouteGroup> groups_;
    std::size_t num_groups_ = 0;
    std::uint32_t total_pairs_ = 0;
};

}  // namespace moex
