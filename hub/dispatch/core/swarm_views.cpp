// Views of the core's state for callers: counters, workers, and the holders of units.
#include <algorithm>

#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/core/swarm_state.h"

namespace moex {

WorkerView SwarmState::view_of(const Worker& worker) const {
    WorkerView view = worker.view();
    view.pairs_credited = worker.pairs_answered;
    view.drained = placement.is_drained(worker);
    view.pinned = placement.is_pinned(worker);
    view.reads_hubs = worker.reads_hubs;
    if (view.state == WorkerState::active && reserve.is_on() && worker.worth.in_reserve())
        view.state = WorkerState::reserve;
    // A worker that is full of whole layers has no expert ready.
    if (view.state == WorkerState::loading && spans.computes_layers(worker.id))
        view.state = WorkerState::active;
    if (worker.hands_over) view.state = WorkerState::draining;
    checks.describe(worker, view);
    return view;
}

SwarmCounters SwarmCore::counters() const {
    SwarmCounters counts = state_->counts;
    for (const auto& [id, worker] : state_->pool.all()) counts.in_flight += worker->ids.num_live();
    counts.rounds_open = state_->in_flight.rounds().size();
    counts.rounds_waiting = state_->in_flight.waiting().size();
    counts.group_p50_ms = to_ms(state_->times.group_latency.p50());
    counts.group_p99_ms = to_ms(state_->times.group_latency.p99());
    counts.group_p999_ms = to_ms(state_->times.group_latency.quantile(0.999));
    const PlacementChoice& choice = state_->options.placement;
    counts.load_window = state_->times.load_window.window(
        choice.rule == PlacementRule::groups ? choice.num_groups : 1, counts.slots.load_us);
    return counts;
}

std::size_t SwarmCore::num_rounds_open() const { return state_->in_flight.rounds().size(); }

std::size_t SwarmCore::in_flight(WorkerId id) const {
    const Worker* worker = state_->pool.find(id);
    return worker == nullptr ? 0 : worker->ids.num_live();
}

std::vector<WorkerView> SwarmCore::workers() const {
    std::vector<WorkerView> views;
    for (const auto& [id, worker] : state_->pool.all()) views.push_back(state_->view_of(*worker));
    return views;
}

std::optional<WorkerView> SwarmCore::worker(WorkerId id) const {
    const Worker* worker = state_->pool.find(id);
    if (worker == nullptr) return std::nullopt;
    return state_->view_of(*worker);
}

std::vector<std::uint16_t> SwarmCore::replicas() const {
    const SwarmState& state = *state_;
    std::vector<std::uint16_t> counts(std::size_t{state.options.limits.num_layers} *
                                      state.options.limits.num_experts);
    for (std::uint32_t unit = 0; unit < state.placement.directory().num_units(); ++unit) {
        const Unit wire = state.placement.wire_unit(unit);
        const auto ready = state.placement.directory().ready(unit);
        counts[std::size_t{wire.layer} * state.options.limits.num_experts + wire.expert] =
            static_cast<std::uint16_t>(
                std::count_if(ready.begin(), ready.end(), [](const UnitHolder* holder) {
                    return worker_of(holder).health.serves_in_need();
                }));
    }
    return counts;
}

std::vector<std::optional<UnitTier>> SwarmCore::tiers() const {
    const SwarmState& state = *state_;
    std::vector<std::optional<UnitTier>> nearest(std::size_t{state.options.limits.num_layers} *
                                                 state.options.limits.num_experts);
    for (std::uint32_t unit = 0; unit < state.placement.directory().num_units(); ++unit) {
        const Unit wire = state.placement.wire_unit(unit);
        auto& tier =
            nearest[std::size_t{wire.layer} * state.options.limits.num_experts + wire.expert];
        for (const UnitHolder* holder : state.placement.directory().ready(unit)) {
            const Worker& worker = worker_of(holder);
            if (!worker.health.serves_in_need()) continue;
            const auto place = worker.tiers.find(unit);
            // std::max works here, because nullopt is less than every tier
            tier = std::max(
                tier, std::optional(place == worker.tiers.end() ? UnitTier::slot : place->second));
        }
    }
    return nearest;
}

Coverage SwarmCore::coverage() const {
    const SwarmState& state = *state_;
    Coverage coverage;
    const std::vector<std::uint16_t> counts = replicas();
    std::uint64_t total = 0;
    for (const std::uint32_t layer : state.placement.moe_layers())
        for (std::uint32_t expert = 0; expert < state.options.limits.num_experts; ++expert) {
            const std::uint32_t count =
                counts[std::size_t{layer} * state.options.limits.num_experts + expert];
            coverage.replicas_min = coverage.units == 0 ? count
                                                        : std::min(coverage.replicas_min, count);
            ++coverage.units;
            if (count > 0 || state.options.local_fallback)
                ++coverage.covered;
            else if (state.placement.directory().may_return(state.placement.unit_of(layer, expert)))
                ++coverage.returning;
            total += count;
        }
    coverage.extra = static_cast<std::uint32_t>(state.placement.directory().extras().size());
    coverage.away = state.placement.directory().placement().num_away();
    if (coverage.units > 0) coverage.replicas_mean = static_cast<double>(total) / coverage.units;
    return coverage;
}

UnitCopies SwarmCore::copies(const std::set<WorkerId>& leaving) const {
    const SwarmState& state = *state_;
    const UnitDirectory& directory = state.placement.directory();
    UnitCopies copies{.units = directory.num_units(), .wanted = state.options.replicas};
    for (const auto& [id, worker] : state.pool.all()) {
        if (leaving.contains(id) || worker->leaving() || worker->hands_over ||
            state.placement.is_drained(*worker) || !worker->health.serves_in_need())
            continue;
        const std::uint32_t room = worker->capacity_units -
                                   std::min(worker->capacity_units, worker->num_planned());
        copies.shares[id] = {.room = room, .is_loading = worker->num_loading() > 0};
        copies.room += room;
    }

    state.spans.count(copies);

    std::vector<UnitCopies::Share*> ready, ordered;
    const auto those_that_stay = [&](std::span<UnitHolder* const> holders, auto& out) {
        out.clear();
        for (const UnitHolder* holder : holders)
            if (const auto share = copies.shares.find(holder->id); share != copies.shares.end())
                out.push_back(&share->second);
    };
    std::uint32_t thin = 0;
    for (std::uint32_t unit = 0; unit < directory.num_units(); ++unit) {
        those_that_stay(directory.ready(unit), ready);
        those_that_stay(directory.holders(unit), ordered);
        if (state.options.local_fallback) {
            const std::uint32_t layer = state.placement.wire_unit(unit).layer;
            state.spans.append_holders(layer, copies, ready);
            state.spans.append_holders(layer, copies, ordered);
        }
        copies.missing += ready.empty();
        thin += !ready.empty() && ordered.size() < copies.wanted;
        if (ready.size() == 1) ++ready.front()->alone;
        if (ordered.size() == copies.wanted && copies.wanted > 1)
            for (UnitCopies::Share* share : ordered) ++share->thinned;
    }
    // A second copy needs another worker, however much room one has.
    const std::uint32_t filled = copies.shares.size() < copies.wanted ? 0
                                                                      : std::min(thin, copies.room);
    copies.thin = thin - filled;
    copies.room -= filled;
    return copies;
}

}  // namespace moex
