// Units and their holders: the directory's orders become ASSIGN, WEIGHT_SYNC and RELEASE frames,
// and the workers' reports about units are passed to the directory.
#include <algorithm>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {
std::uint32_t num_moe_layers(const SwarmOptions& options) {
    return static_cast<std::uint32_t>(std::count_if(options.layer_is_moe.begin(),
                                                    options.layer_is_moe.end(),
                                                    [](auto is_moe) { return is_moe != 0; }));
}

// Returns the options of the directory. The deadline of loading is long enough for four blobs at
// once over a slow connection, because a slow connection is no reason to give up on a worker.
UnitDirectoryOptions directory_options(const SwarmOptions& options) {
    constexpr std::uint64_t slow_line_bytes_per_s = 125'000, blobs_at_once = 4;
    const std::chrono::milliseconds slow_load(1000 * blobs_at_once * options.expert_blob_bytes /
                                              slow_line_bytes_per_s);
    const PlacementOptions placement{
        .num_units = num_moe_layers(options) * options.limits.num_experts,
        .layer_units = options.limits.num_experts,
        .replicas = std::max(1u, options.replicas),
        .seed = options.seed,
        .choice = options.placement};
    // A worker is ordered as many units ahead as a good connection downloads in one or two seconds.
    // With more units ahead, units that have lost their last holder would wait behind them.
    constexpr std::uint64_t ahead_bytes = 16 << 20, ahead_min = 4;
    const std::uint64_t ahead = std::max(
        ahead_min, ahead_bytes / std::max<std::uint64_t>(1, options.expert_blob_bytes));
    // The rate of moves lets all copies move within about eight minutes. With groups it is within
    // seconds, because a unit that is held outside of its group prevents hints from leading by as
    // many layers as there are groups.
    const double num_copies = static_cast<double>(placement.replicas) * placement.num_units;
    const bool grouped = placement.choice.rule == PlacementRule::groups;
    return {.placement = placement,
            .load_within = options.load_within + slow_load,
            .load_again_after = options.load_again_after,
            .return_within = options.return_within,
            .moves_per_s = std::max(16.0, num_copies / (grouped ? 8 : 500)),
            .moves_at_once = std::max(64.0, num_copies / (grouped ? 8 : 100)),
            .loads_ahead = static_cast<std::uint32_t>(
                std::min<std::uint64_t>(ahead, placement.num_units)),
            .serves = [](const UnitHolder& holder) { return worker_of(&holder).health.serves(); }};
}

constexpr std::size_t assign_units_max = 512;  // most units in one ASSIGN frame
// number of WEIGHT_SYNC frames before a HEARTBEAT; the echo of the HEARTBEAT confirms that the
// units are loaded
constexpr std::size_t sync_units_max = 16;
constexpr std::size_t release_units_max = 4096;
}  // namespace

SwarmPlacement::SwarmPlacement(SwarmState& swarm)
    : SwarmPart(swarm),
      directory_(directory_options(options_)),
      hot_experts_(directory_.num_units(), options_.hot) {
    MOEX_CHECK(options_.layer_is_moe.size() == options_.limits.num_layers,
               text("layer_is_moe has ", options_.layer_is_moe.size(), " layers, the limits say ",
                    options_.limits.num_layers));

    for (std::uint32_t layer = 0; layer < options_.limits.num_layers; ++layer) {
        const bool is_moe = options_.layer_is_moe[layer] != 0;
        moe_index_.push_back(is_moe ? static_cast<std::int32_t>(moe_layers_.size()) : -1);
        if (is_moe) moe_layers_.push_back(layer);
    }
}

std::uint32_t SwarmPlacement::unit_of(std::uint32_t layer, std::uint32_t expert) const {
    return static_cast<std::uint32_t>(moe_index_[layer]) * options_.limits.num_experts + expert;
}

Unit SwarmPlacement::wire_unit(std::uint32_t unit) const {
    return {.layer = static_cast<std::uint16_t>(moe_layers_[unit / options_.limits.num_experts]),
            .expert = static_cast<std::uint16_t>(unit % options_.limits.num_experts)};
}

bool SwarmPlacement::is_unit(const Unit& unit) const {
    return unit.layer < moe_index_.size() && moe_index_[unit.layer] >= 0 &&
           unit.expert < options_.limits.num_experts;
}

std::vector<std::uint32_t> SwarmPlacement::units_of(const std::vector<Unit>& named) const {
    std::vector<std::uint32_t> units;
    for (const Unit& unit : named)
        if (is_unit(unit)) units.push_back(unit_of(unit.layer, unit.expert));
    return units;
}

std::uint32_t SwarmPlacement::capacity_of(const Worker& worker) const {
    if (worker.hands_over || drained_.contains(ring_key_of(worker))) return 0;
    if (options_.expert_blob_bytes == 0) return directory_.num_units();
    const std::uint64_t budget = worker.device.budget_bytes,
                        taken = std::min(budget, swarm_.spans.bytes_to_come(worker.id));
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(
        directory_.num_units(), (budget - taken) / options_.expert_blob_bytes));
}

void SwarmPlacement::carry_out_orders(EventContext& context) {
    for (const UnitOrder& order : directory_.take_orders()) {
        Worker* worker = pool_.find(order.worker);
        if (worker == nullptr) continue;
        if (order.release)
            send_release(context, *worker, order.units);
        else
            send_assign(context, *worker, order.units);
    }

    const std::optional<TimePoint> wake_at = directory_.wake_at();
    if (swarm_.sessions.draining() || !wake_at || (units_timer_at_ && *units_timer_at_ <= *wake_at))
        return;
    units_timer_at_ = wake_at;
    context.set_timer(*wake_at, TimerKind::units, 0);
}

void SwarmPlacement::send_assign(EventContext& context, Worker& worker,
                                 std::span<const std::uint32_t> units) {
    std::vector<AssignedUnit> frame;
    std::vector<std::uint32_t> synced;
    auto num_later = static_cast<std::uint32_t>(worker.num_later + units.size());
    for (const std::uint32_t number : units) {
        const Unit unit = wire_unit(number);
        const Sha256 blob = options_.blob_hash ? options_.blob_hash(unit.layer, unit.expert)
                                               : Sha256{};

        if (worker.published_peer) {
            context.send(
                worker,
                encode_weight_sync(
                    {.sequence_id = 0, .layer = unit.layer, .expert = unit.expert, .blob = blob},
                    options_.limits.hidden_size));
            synced.push_back(number);
            if (synced.size() == sync_units_max)
                swarm_.sessions.send_heartbeat(context, worker, std::exchange(synced, {}));
            continue;
        }

        frame.push_back({.layer = unit.layer, .expert = unit.expert, .blob = blob});
        --num_later;
        if (frame.size() == assign_units_max)
            context.send(worker, encode_assign(std::exchange(frame, {}), num_later));
    }

    if (!worker.published_peer && (!frame.empty() || units.empty()))
        context.send(worker, encode_assign(frame, num_later));
    if (!synced.empty()) swarm_.sessions.send_heartbeat(context, worker, std::move(synced));
}

// None of the five published messages takes a unit back. The hub simply sends a published peer no
// more requests for the unit.
void SwarmPlacement::send_release(EventContext& context, Worker& worker,
                                  std::span<const std::uint32_t> units) {
    if (worker.published_peer) return;
    std::vector<Unit> frame;
    for (const std::uint32_t unit : units) {
        frame.push_back(wire_unit(unit));
        if (frame.size() == release_units_max)
            context.send(worker, encode_release(std::exchange(frame, {})));
    }
    if (!frame.empty()) context.send(worker, encode_release(frame));
}

std::uint64_t SwarmPlacement::ring_key_of(const Worker& worker) {
    return worker.worker_key.empty() ? mix_hash(0, worker.id) : text_hash(worker.worker_key);
}

void SwarmPlacement::place(EventContext& context, Worker& worker,
                           std::span<const std::uint32_t> held) {
    if (worker.leaving() || !worker.units.empty()) return;

    PlacementMember member{.worker = worker.id,
                           .ring_key = ring_key_of(worker),
                           .capacity_units = capacity_of(worker),
                           .address_prefix = worker.prefix};
    if (!held.empty()) member.cached.resize(directory_.num_units());
    for (const std::uint32_t unit : held) member.cached[unit] = true;

    directory_.join(worker, member, context.now);
    directory_.settle(context.now);
    carry_out_orders(context);
}

void SwarmPlacement::mark_ready(EventContext& context, Worker& worker,
                                std::span<const std::uint32_t> units) {
    const std::uint32_t before = worker.num_ready;
    if (!directory_.on_ready(worker, units, context.now)) return;

    worker.health.on(HealthEvent::loaded, context.now);
    if (before == 0) {
        worker.decay_work(context.now);
        worker.work = std::max(worker.work, pool_.least_work(worker, context.now));
    }
    if (before == 0 || worker.num_ready == worker.num_planned())
        context.event(worker, WorkerEvent::Kind::ready,
                      text(worker.num_ready, " of ", worker.num_planned(), " experts"));

    swarm_.rounds.free_capacity();
    directory_.settle(context.now);
    carry_out_orders(context);
    swarm_.sessions.end_hand_overs(context);
}

// Handles an ERROR of a worker that does not hold a unit of this attempt. The worker is sent no
// request for the attempt's units until its READY lists them again. The units are assigned to it
// anew, so that a worker that lost its weights downloads them again. After many such errors the hub
// stops assigning the units anew.
void SwarmPlacement::on_missing_units(EventContext& context, Worker& worker, const Attempt& attempt,
                                      const Round& round) {
    constexpr std::uint64_t errors_max = 16;
    std::vector<std::uint32_t> units;
    for (const std::uint32_t slice : attempt.slices) units.push_back(round.slices[slice].unit);

    directory_.on_missing(worker, units, worker.errors <= errors_max, context.now);
    carry_out_orders(context);
}

// Checks whether the worker loads its units in time. A published peer is not checked: it loads in
// order and without reports, and loading_silence_max bounds its time.
void SwarmPlacement::check_loading(EventContext& context, Worker& worker) {
    if (worker.leaving() || worker.hands_over || worker.published_peer) return;
    directory_.check_loading(worker, capacity_of(worker), context.now);
    carry_out_orders(context);
}

Duration SwarmPlacement::holder_wait_of(std::uint32_t unit, TimePoint unheld_since) const {
    const TimePoint held_until = directory_.held_until(unit);
    const bool seen = held_until != TimePoint{} &&
                      unheld_since - held_until <= options_.holder_seen_within;
    return seen ? options_.holder_wait : options_.holder_wait_unseen;
}

// Handles a new memory limit of the worker. Units that the worker dropped are no longer requested
// from it; the placement keeps its other units where they are.
void SwarmPlacement::on_capacity(EventContext& context, Worker& worker,
                                 std::span<const std::uint32_t> dropped) {
    directory_.on_budget(worker, capacity_of(worker), dropped, context.now);
    carry_out_orders(context);
}

void SwarmPlacement::on_no_space(EventContext& context, Worker& worker) {
    directory_.on_no_space(worker, context.now);
    carry_out_orders(context);
}

void SwarmPlacement::leave(Worker& worker, bool may_return, TimePoint now) {
    directory_.leave(worker, may_return, now);
}

void SwarmPlacement::hand_over(EventContext& context, Worker& worker) {
    directory_.hand_over(worker, context.now);
    carry_out_orders(context);
}

void SwarmPlacement::settle(EventContext& context, bool settles) {
    if (settles) directory_.settle(context.now);
    carry_out_orders(context);
}

void SwarmPlacement::on_units_time(EventContext& context) {
    units_timer_at_.reset();
    if (!swarm_.sessions.draining()) directory_.wake(context.now);
    carry_out_orders(context);
}

void SwarmPlacement::set_drained(EventContext& context, Worker& worker, bool on) {
    if (on)
        drained_.insert(ring_key_of(worker));
    else
        drained_.erase(ring_key_of(worker));
    // a drain has the effect of a memory limit of zero; the end of a drain restores the old limit
    if (!worker.leaving() && !worker.hands_over) on_capacity(context, worker, {});
}

}  // namespace moex
