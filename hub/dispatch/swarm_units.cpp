// Who holds what: turns the placement's wishes into ASSIGN, WEIGHT_SYNC and RELEASE, and READY
// into routes. Make before break: a copy is let go only when those who shall hold the unit have
// it.
#include <algorithm>

#include "hub/dispatch/swarm_state.h"

namespace moex {
namespace {
constexpr std::size_t assign_units_max = 512;  // a frame
// WEIGHT_SYNCs before the HEARTBEAT that asks whether they are loaded
constexpr std::size_t sync_units_max = 16;
constexpr std::size_t release_units_max = 4096;
constexpr Duration load_again_max = 10min;
constexpr std::uint64_t slow_line_bytes_per_s = 125'000, blobs_at_once = 4;
}  // namespace

std::uint32_t SwarmCore::State::unit_of(std::uint32_t layer, std::uint32_t expert) const {
    return static_cast<std::uint32_t>(moe_index[layer]) * options.limits.num_experts + expert;
}

Unit SwarmCore::State::wire_unit(std::uint32_t unit) const {
    return {.layer = static_cast<std::uint16_t>(moe_layers[unit / options.limits.num_experts]),
            .expert = static_cast<std::uint16_t>(unit % options.limits.num_experts)};
}

bool SwarmCore::State::is_unit(const Unit& unit) const {
    return unit.layer < moe_index.size() && moe_index[unit.layer] >= 0 &&
           unit.expert < options.limits.num_experts;
}

void SwarmCore::State::apply(Turn& turn, const std::vector<PlacementChange>& changes) {
    for (const PlacementChange& change : changes) {
        Worker* worker = pool.find(change.worker);
        if (worker == nullptr) continue;
        if (change.added) {
            worker->units[change.unit] |= Worker::wanted;
            if (!worker->has(change.unit, Worker::assigned)) worker->assign_pending = true;
        } else {
            worker->units[change.unit] &= static_cast<std::uint8_t>(~Worker::wanted);
            surplus_check.push_back(change.unit);
        }
    }

    units_freed(turn);
    for (const auto& [id, worker] : pool.all())
        if (worker->assign_pending) send_assignments(turn, *worker);
}

void SwarmCore::State::units_freed(Turn& turn) {
    while (!surplus_check.empty()) {
        const std::uint32_t unit = surplus_check.back();
        surplus_check.pop_back();
        release_surplus(turn, unit);
    }
}

// Sends what the placement wants of this worker and its budget has room
// for. Uncovered units first, so that every expert is served soon.
void SwarmCore::State::send_assignments(Turn& turn, Worker& worker) {
    worker.assign_pending = false;
    const std::uint32_t room = worker.capacity_units -
                               std::min(worker.capacity_units, worker.num_assigned);
    struct Wish {
        std::size_t num_ready, num_holders;
        std::uint64_t order;
        std::uint32_t unit;
    };

    std::vector<Wish> wishes;
    for (std::uint32_t unit = 0; unit < worker.units.size(); ++unit)
        if (worker.has(unit, Worker::wanted) && !worker.has(unit, Worker::assigned))
            wishes.push_back(
                {ready[unit].size(), holders[unit].size(), mix_hash(worker.id, unit), unit});

    if (wishes.empty()) return;

    std::sort(wishes.begin(), wishes.end(), [](const Wish& a, const Wish& b) {
        return std::tie(a.num_ready, a.num_holders, a.order) <
               std::tie(b.num_ready, b.num_holders, b.order);
    });

    if (wishes.size() > room) {
        worker.assign_pending = true;  // when a unit has been released
        wishes.resize(room);
        for (std::uint32_t unit = 0; unit < worker.units.size(); ++unit)
            if (worker.has(unit, Worker::assigned) && !worker.has(unit, Worker::wanted))
                surplus_check.push_back(unit);
    }

    if (worker.num_ready == worker.num_assigned) worker.loading_since = turn.now;

    std::vector<std::uint32_t> units;
    for (const Wish& wish : wishes) {
        worker.units[wish.unit] |= Worker::assigned;
        ++worker.num_assigned;
        holders[wish.unit].push_back(&worker);
        units.push_back(wish.unit);
    }

    send_assign(turn, worker, units);
}

void SwarmCore::State::send_assign(Turn& turn, Worker& worker,
                                   std::span<const std::uint32_t> units) {
    std::vector<AssignedUnit> frame;
    std::vector<std::uint32_t> synced;
    for (const std::uint32_t number : units) {
        const Unit unit = wire_unit(number);
        const Sha256 blob = options.blob_hash ? options.blob_hash(unit.layer, unit.expert)
                                              : Sha256{};

        if (worker.published_peer) {
            turn.send(
                worker,
                encode_weight_sync(
                    {.sequence_id = 0, .layer = unit.layer, .expert = unit.expert, .blob = blob},
                    options.limits.hidden_size));
            synced.push_back(number);
            if (synced.size() == sync_units_max)
                send_heartbeat(turn, worker, std::exchange(synced, {}));
            continue;
        }

        frame.push_back({.layer = unit.layer, .expert = unit.expert, .blob = blob});
        if (frame.size() == assign_units_max) {
            turn.send(worker, encode_assign(frame));
            frame.clear();
        }
    }

    if (!frame.empty()) turn.send(worker, encode_assign(frame));
    if (!synced.empty()) send_heartbeat(turn, worker, std::move(synced));
}

void SwarmCore::State::mark_ready(Turn& turn, Worker& worker,
                                  std::span<const std::uint32_t> units) {
    const std::uint32_t before = worker.num_ready;
    for (const std::uint32_t unit : units) {
        // released meanwhile, or said twice
        if (!worker.has(unit, Worker::assigned) || worker.has(unit, Worker::ready)) continue;
        worker.units[unit] |= Worker::ready;
        ++worker.num_ready;
        ready[unit].push_back(&worker);
        surplus_check.push_back(unit);
    }

    if (worker.num_ready == before) return;
    worker.loading_since = turn.now;
    worker.health.on(HealthEvent::loaded, turn.now);
    if (worker.num_ready == worker.num_assigned) worker.times_stuck = 0;

    if (before == 0) worker.work = std::max(worker.work, pool.least_work());
    if (before == 0 || worker.num_ready == worker.num_assigned)
        turn.event(worker, WorkerEvent::Kind::ready,
                   text(worker.num_ready, " of ", worker.num_assigned, " experts"));

    capacity_freed = true;
    units_freed(turn);
}

void SwarmCore::State::mark_not_ready(TimePoint now, Worker& worker, std::uint32_t unit) {
    if (!worker.has(unit, Worker::ready)) return;
    if (worker.num_ready == worker.num_assigned) worker.loading_since = now;
    worker.units[unit] &= static_cast<std::uint8_t>(~Worker::ready);
    --worker.num_ready;
    std::erase(ready[unit], &worker);
}

void SwarmCore::State::unassign(Turn& turn, Worker& worker, std::uint32_t unit) {
    if (!worker.has(unit, Worker::assigned)) return;
    mark_not_ready(turn.now, worker, unit);
    worker.units[unit] &= static_cast<std::uint8_t>(~Worker::assigned);
    --worker.num_assigned;
    std::erase(holders[unit], &worker);
    held_until[unit] = turn.now;
}

void SwarmCore::State::release_surplus(Turn& turn, std::uint32_t unit) {
    const auto owners = placement.owners(unit);
    std::size_t ready_owners = 0;
    for (const Worker* worker : ready[unit])
        if (worker->has(unit, Worker::wanted) && worker->health.serves()) ++ready_owners;

    for (std::size_t i = holders[unit].size(); i-- > 0;) {
        Worker& worker = *holders[unit][i];
        if (worker.has(unit, Worker::wanted)) continue;

        // A worker that has no room for what it should
        // hold may go as soon as one other copy is ready.
        const std::size_t enough = worker.assign_pending ? std::min<std::size_t>(1, owners.size())
                                                         : owners.size();
        const bool copies_elsewhere = !owners.empty() && ready_owners >= enough;
        if (worker.has(unit, Worker::ready) && !copies_elsewhere) continue;

        unassign(turn, worker, unit);

        if (!worker.published_peer) turn.send(worker, encode_release({wire_unit(unit)}));
        if (worker.assign_pending) send_assignments(turn, worker);
    }
}

void SwarmCore::State::forget_holder(TimePoint now, Worker& worker) {
    for (std::uint32_t unit = 0; unit < worker.units.size(); ++unit) {
        if (worker.has(unit, Worker::ready)) std::erase(ready[unit], &worker);
        if (worker.has(unit, Worker::assigned)) {
            std::erase(holders[unit], &worker);
            held_until[unit] = now;
        }
        worker.units[unit] = 0;
    }
    worker.num_assigned = worker.num_ready = 0;
}

Duration SwarmCore::State::load_within() const {
    return options.load_within +
           std::chrono::milliseconds(1000 * blobs_at_once * options.expert_blob_bytes /
                                     slow_line_bytes_per_s);
}

// A published peer loads in order and in silence; loading_silence_max bounds that.
void SwarmCore::State::check_loading(Turn& turn, Worker& worker) {
    if (worker.leaving() || worker.published_peer) return;

    if (worker.num_ready < worker.num_assigned &&
        turn.now - worker.loading_since >= load_within()) {
        take_back_unloaded(turn, worker);
    } else if (worker.room_again_at && *worker.room_again_at <= turn.now) {
        worker.room_again_at.reset();
        set_capacity(turn, worker, capacity_of(worker), {});
    }
}

// What it does not get loaded goes to others, and for a while it is given no more than it holds.
void SwarmCore::State::take_back_unloaded(Turn& turn, Worker& worker) {
    std::vector<std::uint32_t> spare;
    std::vector<Unit> released;
    std::uint32_t num_kept = 0;
    for (std::uint32_t unit = 0; unit < worker.units.size(); ++unit) {
        const bool is_ready = worker.has(unit, Worker::ready);
        if (worker.has(unit, Worker::wanted)) is_ready ? void(++num_kept) : spare.push_back(unit);
        if (is_ready || !worker.has(unit, Worker::assigned)) continue;

        unassign(turn, worker, unit);
        released.push_back(wire_unit(unit));
        if (released.size() == release_units_max)
            turn.send(worker, encode_release(std::exchange(released, {})));
    }
    if (!released.empty()) turn.send(worker, encode_release(released));

    ++worker.times_stuck;
    worker.room_again_at = turn.now +
                           std::min<Duration>(options.load_again_after * worker.times_stuck,
                                              load_again_max);
    set_capacity(turn, worker, num_kept, spare);
}

void SwarmCore::State::set_capacity(Turn& turn, Worker& worker, std::uint32_t capacity_units,
                                    std::span<const std::uint32_t> spare) {
    worker.capacity_units = capacity_units;
    std::vector<PlacementChange> changes;
    placement.resize(worker.id, capacity_units, spare, changes);
    apply(turn, changes);
}

Duration SwarmCore::State::holder_wait_of(std::uint32_t unit, TimePoint unheld_since) const {
    const bool seen = held_until[unit] != TimePoint{} &&
                      unheld_since - held_until[unit] <= options.holder_seen_within;
    return seen ? options.holder_wait : options.holder_wait_unseen;
}

}  // namespace moex
