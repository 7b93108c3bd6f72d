// Chooses workers for the open slices of a round (a cover): which workers may take which slices,
// and the groups that are then sent.
#include <algorithm>
#include <utility>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {

bool SwarmCover::eligible(const Worker& worker, TimePoint now) const {
    return worker.num_ready > 0 && worker.health.serves_in_need() &&
           worker.ids.num_live() < worker.queue_depth && worker.busy_until <= now &&
           worker.cancels_since_heard < worker.cancels_since_heard_max() &&
           !worker.loading_in_order();
}

bool SwarmCover::in_need(std::uint32_t unit) const {
    return !options_.local_fallback &&
           std::ranges::none_of(
               swarm_.placement.directory().ready(unit),
               [](const UnitHolder* holder) { return worker_of(holder).health.serves(); });
}

bool SwarmCover::can_take(const Worker& worker, const CallSlice& slice) const {
    return slice.num_pairs() <= worker.pairs_max && worker.accepts(slice.dtype) &&
           !slice.was_tried(worker.id) && (worker.health.serves() || in_need(slice.unit));
}

// Returns, for each expert of the layer, the most pairs that a ready holder takes in one group. A
// weak worker (one with a lower limit than the wire's) gets slices that are small enough, without
// smaller slices for other experts. Empty when there are no weak workers.
std::span<const std::uint32_t> SwarmCover::slice_pairs_max(std::uint32_t layer) {
    if (pool_.num_weak() == 0) return {};

    const UnitDirectory& directory = swarm_.placement.directory();
    const std::uint32_t first_unit = swarm_.placement.unit_of(layer, 0);
    pairs_max_of_.assign(options_.limits.num_experts, WorkerPool::slice_pairs_min);
    for (std::uint32_t expert = 0; expert < options_.limits.num_experts; ++expert)
        for (const UnitHolder* holder : directory.ready(first_unit + expert))
            pairs_max_of_[expert] = std::max(pairs_max_of_[expert], worker_of(holder).pairs_max);
    return pairs_max_of_;
}

// Returns the worker's number in the router; nullopt if the worker may not be sent a group now.
std::optional<std::uint32_t> SwarmCover::route_of(Worker& worker, Dtype dtype, bool idle_only,
                                                  TimePoint now) {
    if (worker.mark == mark_) return worker.route;
    if (swarm_.reserve.is_on() && !(worker.judged_in == mark_ && worker.is_worth_asking))
        return std::nullopt;
    if (!eligible(worker, now) || !worker.accepts(dtype)) return std::nullopt;
    if (idle_only && worker.ids.num_live() > 0) return std::nullopt;

    worker.mark = mark_;
    worker.decay_work(now);
    worker.route = router_.add_worker(
        {.id = worker.id,
         .num_live = static_cast<std::uint32_t>(worker.ids.num_live()),
         .work = worker.work,
         .stalls = worker.stalls_until > now || !worker.is_preferred_in(mark_)});
    routed_.push_back(&worker);
    loads_.emplace_back();
    return worker.route;
}

// Removes takers without a trust record, if at least one taker with a trust record remains.
void SwarmCover::prefer_proven() {
    const auto is_proven = [&](std::uint32_t number) { return routed_[number]->is_proven; };
    if (std::any_of(takers_.begin(), takers_.end(), is_proven))
        std::erase_if(takers_, [&](std::uint32_t number) { return !is_proven(number); });
}

// Removes takers that would first have to load the unit into memory, if another taker already has
// it in memory. If no taker has it, the load time is added to the predicted latency of each taker.
void SwarmCover::prefer_resident(std::uint32_t unit, TimePoint now) {
    const auto load_of = [&](std::uint32_t number) { return routed_[number]->load_of(unit); };
    const bool any_resident = std::ranges::any_of(takers_, [&](std::uint32_t number) {
        return load_of(number) == Duration{} && routed_[number]->stalls_until <= now;
    });
    if (any_resident)
        std::erase_if(takers_, [&](std::uint32_t number) { return load_of(number) > Duration{}; });
    for (const std::uint32_t number : takers_)
        loads_[number] = std::max(loads_[number], load_of(number));
}

// Decides which holders of the open slices are asked in this pass, where the hub computes experts
// itself: those that are expected to answer before the hub would be done with all open slices.
// Returns the time that the hub would need.
std::optional<Duration> SwarmCover::judge_holders(const Round& round,
                                                  std::span<const std::uint32_t> open,
                                                  TimePoint now) {
    judged_.clear();
    std::uint32_t num_pairs = 0;
    for (const std::uint32_t i : open) {
        num_pairs += round.slices[i].num_pairs();
        for (UnitHolder* holder : swarm_.placement.directory().ready(round.slices[i].unit)) {
            Worker& worker = worker_of(holder);
            const bool is_listed = std::exchange(worker.judged_in, mark_) == mark_;
            if (!is_listed) worker.pairs_open = 0;
            worker.pairs_open += round.slices[i].num_pairs();
            if (is_listed) continue;
            worker.is_worth_asking = false;
            if (worker.health.serves() && eligible(worker, now)) judged_.push_back(&worker);
        }
    }

    const std::optional<Duration> here = swarm_.reserve.local_time(num_pairs, now);
    const std::uint32_t pairs_each = swarm_.reserve.begin_pass(num_pairs, judged_.size());
    for (Worker* worker : judged_)
        worker->is_worth_asking = swarm_.reserve.is_worth_asking(
            *worker, std::min(pairs_each, worker->pairs_open), here, now);
    return here;
}

void SwarmCover::plan_cover(EventContext& context, Round& round, std::vector<std::uint32_t>& open,
                            bool hedge) {
    ++mark_;
    router_.begin();
    routed_.clear();
    loads_.clear();
    std::optional<Duration> here;
    if (swarm_.reserve.is_on()) here = judge_holders(round, open, context.now);
    const UnitDirectory& directory = swarm_.placement.directory();
    const bool idle_only = hedge && round.copies == 1,
               room_for_new = swarm_.checks.has_room_for_new();
    for (const std::uint32_t i : open) {
        const CallSlice& slice = round.slices[i];
        takers_.clear();
        for (UnitHolder* holder : directory.ready(slice.unit)) {
            Worker& worker = worker_of(holder);
            const auto route = route_of(worker, slice.dtype, idle_only, context.now);
            if (route && can_take(worker, slice)) takers_.push_back(*route);
        }
        if (!room_for_new) prefer_proven();
        if (pool_.num_on_demand() > 0) prefer_resident(slice.unit, context.now);
        router_.add_slice(i, slice.num_pairs(), takers_);
    }
    if (routed_.empty()) return;

    const std::uint32_t pairs_each = router_.pairs_each();
    for (std::uint32_t number = 0; number < routed_.size(); ++number) {
        const Duration pace = routed_[number]->predicted(pairs_each, swarm_.attempts.latency(),
                                                         context.now) +
                              loads_[number];
        router_.set_pace(number, std::max(1e-3, to_ms(pace)));
    }

    const std::span<const RouteGroup> groups = router_.cover();
    open.clear();
    router_.append_left(open);
    for (const RouteGroup& group : groups) {
        // A group may be larger than the part for which its worker was judged.
        if (here && !swarm_.reserve.is_worth_asking(*routed_[group.worker], group.num_pairs, here,
                                                    context.now)) {
            open.insert(open.end(), group.slices.begin(), group.slices.end());
            continue;
        }
        send_group(context, round, *routed_[group.worker], group.slices, hedge, open);
    }
    std::sort(open.begin(), open.end());
}

// Splits a group into frames that keep the limits of the wire. Slices for which the worker's queue
// has no room are appended to `unsent`.
void SwarmCover::send_group(EventContext& context, Round& round, Worker& worker,
                            std::vector<std::uint32_t> slices, bool hedge,
                            std::vector<std::uint32_t>& unsent) {
    std::sort(slices.begin(), slices.end());  // sorted by block, then by expert
    const std::uint32_t pairs_max = std::min(options_.limits.num_pairs_max, worker.pairs_max);

    const auto belong_together = [&](const CallSlice& a, const CallSlice& b) {
        return a.block == b.block && a.dtype == b.dtype &&
               (round.unsummed || a.latest_attempt() == b.latest_attempt());
    };

    std::size_t begin = 0;
    while (begin < slices.size() && worker.ids.num_live() < worker.queue_depth) {
        std::size_t end = begin;
        std::uint32_t num_pairs = 0;
        const CallSlice& first = round.slices[slices[begin]];

        while (end < slices.size()) {
            const CallSlice& slice = round.slices[slices[end]];
            if (end > begin && (worker.published_peer || !belong_together(first, slice) ||
                                num_pairs + slice.num_pairs() > pairs_max))
                break;
            num_pairs += slice.num_pairs();
            ++end;
        }

        swarm_.attempts.send_attempt(context, round, worker,
                                     std::span(slices).subspan(begin, end - begin),
                                     hedge ? AttemptKind::hedge : AttemptKind::first);
        begin = end;
    }

    unsent.insert(unsent.end(), slices.begin() + static_cast<std::ptrdiff_t>(begin), slices.end());
}

}  // namespace moex
