#include "hub/dispatch/round/router.h"

#include <algorithm>
#include <cmath>

namespace moex {

void Router::begin() {
    workers_.clear();
    items_.clear();
    takers_.clear();
    num_groups_ = 0;
    total_pairs_ = 0;
}

std::uint32_t Router::add_worker(const RouteWorker& worker) {
    workers_.push_back({.given = worker});
    return static_cast<std::uint32_t>(workers_.size() - 1);
}

void Router::add_slice(std::uint32_t slice, std::uint32_t num_pairs,
                       std::span<const std::uint32_t> takers) {
    const auto begin = static_cast<std::uint32_t>(takers_.size());
    takers_.insert(takers_.end(), takers.begin(), takers.end());
    items_.push_back({.slice = slice,
                      .num_pairs = num_pairs,
                      .takers_begin = begin,
                      .takers_end = static_cast<std::uint32_t>(takers_.size())});

    total_pairs_ += num_pairs;
    for (const std::uint32_t taker : takers) {
        workers_[taker].gain_pairs += num_pairs;
        ++workers_[taker].slices_end;
    }
}

std::uint32_t Router::pairs_each() const {
    const auto num_workers = static_cast<std::uint32_t>(std::max<std::size_t>(1, workers_.size()));
    return std::max(1u, total_pairs_ / num_workers);
}

void Router::share_out() {
    constexpr double slow_factor = 3;
    paces_.clear();
    for (const Candidate& candidate : workers_) paces_.push_back(candidate.given.pace_ms);
    const auto middle = paces_.begin() + static_cast<std::ptrdiff_t>((paces_.size() - 1) / 2);
    std::nth_element(paces_.begin(), middle, paces_.end());

    double speed_total = 0;
    for (Candidate& candidate : workers_) {
        candidate.is_slow = candidate.given.stalls ||
                            candidate.given.pace_ms > slow_factor * *middle;
        if (!candidate.is_slow) speed_total += 1 / candidate.given.pace_ms;
    }

    speed_total = std::max(1e-9, speed_total);
    for (Candidate& candidate : workers_) {
        const double share = std::ceil(total_pairs_ / candidate.given.pace_ms / speed_total);
        candidate.share_pairs = std::max(
            share_pairs_min, static_cast<std::uint32_t>(std::min<double>(total_pairs_, share)));
    }
}

// Lists each worker's slices, in the order of add_slice().
void Router::list_slices() {
    std::uint32_t at = 0;
    for (Candidate& candidate : workers_) {
        const std::uint32_t count = candidate.slices_end - candidate.slices_begin;
        candidate.slices_begin = candidate.slices_end = at;
        at += count;
    }

    slices_of_.resize(at);
    for (std::uint32_t i = 0; i < items_.size(); ++i)
        for (const std::uint32_t taker : takers_of(items_[i]))
            slices_of_[workers_[taker].slices_end++] = i;
}

Router::Key Router::key_of(const Candidate& candidate) const {
    return {~std::min(candidate.gain_pairs, candidate.share_pairs), candidate.given.num_live,
            candidate.given.work, candidate.given.id};
}

void Router::give(Item& item, RouteGroup& group) {
    item.given = true;
    group.slices.push_back(item.slice);
    group.num_pairs += item.num_pairs;
    for (const std::uint32_t taker : takers_of(item)) workers_[taker].gain_pairs -= item.num_pairs;
}

// Picks workers greedily, from a heap by gain (pairs that a worker can still take). The gain of a
// worker only shrinks, so an old key in the heap is never worse than the true one. The top of the
// heap is the best worker once its key is up to date.
void Router::cover_with(bool slow) {
    heap_.clear();
    for (std::uint32_t i = 0; i < workers_.size(); ++i)
        if (workers_[i].is_slow == slow && workers_[i].gain_pairs > 0)
            heap_.emplace_back(key_of(workers_[i]), i);
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());

    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
        auto& [key, number] = heap_.back();
        Candidate& best = workers_[number];
        if (best.gain_pairs == 0) {
            heap_.pop_back();
            continue;
        }
        if (const Key now = key_of(best); now != key) {
            key = now;
            std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
            continue;
        }

        if (groups_.size() <= num_groups_) groups_.emplace_back();
        RouteGroup& group = groups_[num_groups_];
        group.worker = number;
        group.slices.clear();
        group.num_pairs = 0;
        best.group = static_cast<std::int32_t>(num_groups_++);
        heap_.pop_back();

        for (std::uint32_t at = best.slices_begin; at < best.slices_end; ++at) {
            Item& item = items_[slices_of_[at]];
            const bool fits = group.num_pairs == 0 ||
                              group.num_pairs + item.num_pairs <= best.share_pairs;
            if (!item.given && fits) give(item, group);
        }
    }
}

// Assigns the slices that exceed the workers' shares to workers that already have a group, the
// worker with the smallest group first.
void Router::give_rest() {
    for (Item& item : items_) {
        if (item.given) continue;
        RouteGroup* least = nullptr;
        for (const std::uint32_t taker : takers_of(item)) {
            if (workers_[taker].group < 0) continue;
            RouteGroup& group = groups_[static_cast<std::size_t>(workers_[taker].group)];
            if (least == nullptr || group.num_pairs < least->num_pairs) least = &group;
        }
        if (least != nullptr) give(item, *least);
    }
}

std::span<const RouteGroup> Router::cover() {
    if (workers_.empty()) return {};

    share_out();
    list_slices();
    for (const bool slow : {false, true}) {
        cover_with(slow);
        give_rest();
    }
    return std::span(groups_).first(num_groups_);
}

void Router::append_left(std::vector<std::uint32_t>& slices) const {
    for (const Item& item : items_)
        if (!item.given) slices.push_back(item.slice);
}

}  // namespace moex
