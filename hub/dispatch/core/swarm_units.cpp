// Who holds what: the directory's orders become ASSIGN, WEIGHT_SYNC and RELEASE, and what workers
// say of their units goes to the directory.
#include <algorithm>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {
constexpr std::size_t assign_units_max = 512;  // a frame
// WEIGHT_SYNCs before the HEARTBEAT that asks whether they are loaded
constexpr std::size_t sync_units_max = 16;
constexpr std::size_t release_units_max = 4096;
}  // namespace

std::uint32_t SwarmState::unit_of(std::uint32_t layer, std::uint32_t expert) const {
    return static_cast<std::uint32_t>(moe_index[layer]) * options.limits.num_experts + expert;
}

Unit SwarmState::wire_unit(std::uint32_t unit) const {
    return {.layer = static_cast<std::uint16_t>(moe_layers[unit / options.limits.num_experts]),
            .expert = static_cast<std::uint16_t>(unit % options.limits.num_experts)};
}

bool SwarmState::is_unit(const Unit& unit) const {
    return unit.layer < moe_index.size() && moe_index[unit.layer] >= 0 &&
           unit.expert < options.limits.num_experts;
}

std::vector<std::uint32_t> SwarmState::units_of(const std::vector<Unit>& named) const {
    std::vector<std::uint32_t> units;
    for (const Unit& unit : named)
        if (is_unit(unit)) units.push_back(unit_of(unit.layer, unit.expert));
    return units;
}

void SwarmState::carry_out_orders(EventContext& context) {
    for (const UnitOrder& order : directory.take_orders()) {
        Worker* worker = pool.find(order.worker);
        if (worker == nullptr) continue;
        if (order.release)
            send_release(context, *worker, order.units);
        else
            send_assign(context, *worker, order.units);
    }

    const std::optional<TimePoint> wake_at = directory.wake_at();
    if (draining || !wake_at || (units_timer_at && *units_timer_at <= *wake_at)) return;
    units_timer_at = wake_at;
    context.set_timer(*wake_at, TimerKind::units, 0);
}

void SwarmState::send_assign(EventContext& context, Worker& worker,
                             std::span<const std::uint32_t> units) {
    std::vector<AssignedUnit> frame;
    std::vector<std::uint32_t> synced;
    auto num_later = static_cast<std::uint32_t>(worker.num_later + units.size());
    for (const std::uint32_t number : units) {
        const Unit unit = wire_unit(number);
        const Sha256 blob = options.blob_hash ? options.blob_hash(unit.layer, unit.expert)
                                              : Sha256{};

        if (worker.published_peer) {
            context.send(
                worker,
                encode_weight_sync(
                    {.sequence_id = 0, .layer = unit.layer, .expert = unit.expert, .blob = blob},
                    options.limits.hidden_size));
            synced.push_back(number);
            if (synced.size() == sync_units_max)
                send_heartbeat(context, worker, std::exchange(synced, {}));
            continue;
        }

        frame.push_back({.layer = unit.layer, .expert = unit.expert, .blob = blob});
        --num_later;
        if (frame.size() == assign_units_max)
            context.send(worker, encode_assign(std::exchange(frame, {}), num_later));
    }

    if (!worker.published_peer && (!frame.empty() || units.empty()))
        context.send(worker, encode_assign(frame, num_later));
    if (!synced.empty()) send_heartbeat(context, worker, std::move(synced));
}

// No message of the five takes a unit back: a published peer is not asked for it any more.
void SwarmState::send_release(EventContext& context, Worker& worker,
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

std::uint64_t SwarmState::ring_key_of(const Worker& worker) {
    return worker.worker_key.empty() ? mix_hash(0, worker.id) : text_hash(worker.worker_key);
}

void SwarmState::place(EventContext& context, Worker& worker, std::span<const std::uint32_t> held) {
    if (worker.leaving() || !worker.units.empty()) return;

    PlacementMember member{.worker = worker.id,
                           .ring_key = ring_key_of(worker),
                           .capacity_units = capacity_of(worker),
                           .address_prefix = worker.prefix};
    if (!held.empty()) member.cached.resize(directory.num_units());
    for (const std::uint32_t unit : held) member.cached[unit] = true;

    directory.join(worker, member, context.now);
    directory.settle(context.now);
    carry_out_orders(context);
}

void SwarmState::mark_ready(EventContext& context, Worker& worker,
                            std::span<const std::uint32_t> units) {
    const std::uint32_t before = worker.num_ready;
    if (!directory.on_ready(worker, units, context.now)) return;

    worker.health.on(HealthEvent::loaded, context.now);
    if (before == 0) {
        worker.decay_work(context.now);
        worker.work = std::max(worker.work, pool.least_work(worker, context.now));
    }
    if (before == 0 || worker.num_ready == worker.num_planned())
        context.event(worker, WorkerEvent::Kind::ready,
                      text(worker.num_ready, " of ", worker.num_planned(), " experts"));

    capacity_freed = true;
    directory.settle(context.now);
    carry_out_orders(context);
}

// The worker does not hold something of this attempt: nothing of it is asked
// there until READY names it again. It is assigned anew, so that a worker that
// lost its weights fetches them; one that goes on saying so is left alone.
void SwarmState::on_missing_units(EventContext& context, Worker& worker, const Attempt& attempt,
                                  const Round& round) {
    constexpr std::uint64_t errors_max = 16;
    std::vector<std::uint32_t> units;
    for (const std::uint32_t slice : attempt.slices) units.push_back(round.slices[slice].unit);

    directory.on_missing(worker, units, worker.errors <= errors_max, context.now);
    carry_out_orders(context);
}

// A published peer loads in order and in silence; loading_silence_max bounds that.
void SwarmState::check_loading(EventContext& context, Worker& worker) {
    if (worker.leaving() || worker.published_peer) return;
    directory.check_loading(worker, capacity_of(worker), context.now);
    carry_out_orders(context);
}

Duration SwarmState::holder_wait_of(std::uint32_t unit, TimePoint unheld_since) const {
    const TimePoint held_until = directory.held_until(unit);
    const bool seen = held_until != TimePoint{} &&
                      unheld_since - held_until <= options.holder_seen_within;
    return seen ? options.holder_wait : options.holder_wait_unseen;
}

}  // namespace moex
