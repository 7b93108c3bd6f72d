// Which workers compute the slices of a round that nobody works on: a cover by few groups.
//
// Greedy set cover: again and again the worker that can take most of what is left, up to its share,
// ties to the less loaded, then to the one that has worked less. Shares go by predicted time, so
// that large rounds end at all workers at about the same time. Who needs three times as long as the
// middle one has no share: it computes what nobody else can take.
// Pure: what may be asked of whom goes in, groups come out. Its vectors are kept from round to
// round.
// Source: Chvatal, "A Greedy Heuristic for the Set-Covering Problem", 1979.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "hub/dispatch/placement/placement.h"

namespace moex {

// A worker that may be asked now.
struct RouteWorker {
    WorkerId id = 0;
    std::uint32_t num_live = 0;  // groups that it has
    double work = 0;             // that it was given of late
    // it was overdue and has answered nothing since, or lets this turn pass
    bool stalls = false;
    double pace_ms = 0;  // predicted for a group of Router::pairs_each()
};
struct RouteGroup {
    std::uint32_t worker = 0;           // as add_worker() numbered it
    std::vector<std::uint32_t> slices;  // as add_slice() was told, in no order
    std::uint32_t num_pairs = 0;
};

class Router {
  public:
    // Below this a round is not split for the sake of balance.
    static constexpr std::uint32_t share_pairs_min = 64;

    void begin();
    // Its number: 0, 1, ...
    std::uint32_t add_worker(const RouteWorker& worker);
    // `takers`: the numbers of those who can take it. The order of adding is that of giving out.
    void add_slice(std::uint32_t slice, std::uint32_t num_pairs,
                   std::span<const std::uint32_t> takers);

    // What each would get of an even split: what paces are predicted for.
    std::uint32_t pairs_each() const;
    void set_pace(std::uint32_t number, double pace_ms) {
        workers_[number].given.pace_ms = pace_ms;
    }

    // O(p log p) for p pairs of (slice, taker). One group a worker at most, valid until begin().
    std::span<const RouteGroup> cover();
    // Pieces that found nobody, in the order of adding.
    void append_left(std::vector<std::uint32_t>& slices) const;

  private:
    struct Candidate {
        RouteWorker given;
        std::uint32_t gain_pairs = 0;  // of what is left it can take so many
        std::uint32_t share_pairs = 0;
        std::int32_t group = -1;
        bool is_slow = false;
        std::uint32_t slices_begin = 0, slices_end = 0;  // into slices_of_
    };
    struct Item {
        std::uint32_t slice = 0, num_pairs = 0;
        std::uint32_t takers_begin = 0, takers_end = 0;  // into takers_
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
    std::vector<std::uint32_t> takers_;     // of all items
    std::vector<std::uint32_t> slices_of_;  // items of each worker
    std::vector<double> paces_;
    std::vector<std::pair<Key, std::uint32_t>> heap_;
    std::vector<RouteGroup> groups_;
    std::size_t num_groups_ = 0;
    std::uint32_t total_pairs_ = 0;
};

}  // namespace moex
