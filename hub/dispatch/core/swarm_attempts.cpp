// The start of attempts: a group is sent to one worker, or passed to the local backend.
#include <algorithm>

#include "hub/dispatch/core/swarm_state.h"
#include "protocol/lz4_block.h"

namespace moex {
namespace {
// Returns an upper bound in bytes on the answer frame for a group of this shape, compressed or not.
// The bound also holds for a RESULT, the answer to a DISPATCH with one row per pair.
std::uint64_t answer_frame_bytes(const GroupShape& shape) {
    // the header of RESULT has 28 bytes, that of GROUP_RESULT 32
    constexpr std::uint64_t headers_bytes_max = 64;
    const std::uint32_t rows = shape.unsummed ? shape.num_pairs : shape.num_tokens;
    return headers_bytes_max +
           lz4_block_bytes_max(wire_rows_bytes(shape.dtype, rows, shape.hidden_dim));
}
}  // namespace

SwarmAttempts::SwarmAttempts(SwarmState& swarm) : SwarmPart(swarm), policy_(options_.hedge) {}

void SwarmAttempts::send_attempt(EventContext& context, Round& round, Worker& worker,
                                 std::span<const std::uint32_t> slices, AttemptKind kind) {
    const bool hedge = kind != AttemptKind::first;
    Attempt& attempt = in_flight_.new_attempt(round, worker.id);
    attempt.hedge = hedge;
    attempt.probe = kind == AttemptKind::probe;
    attempt.slices.assign(slices.begin(), slices.end());
    round.begin(attempt);

    const bool again = !hedge && std::any_of(slices.begin(), slices.end(), [&](std::uint32_t i) {
        return round.slices[i].dispatches > 0;
    });
    if (again) ++counts_.groups_again;

    for (const std::uint32_t i : slices) {
        CallSlice& slice = round.slices[i];
        if (hedge) {
            slice.hedged |= !attempt.probe;
        } else {
            if (slice.dispatches > 0) ++counts_.redispatched;
            ++slice.dispatches;
        }
        slice.tried.push_back(worker.id);
        slice.unheld_since.reset();
    }

    round.fill_group(attempt, group_);
    attempt.x_int8 = group_.x_int8 = worker.takes_x_int8(attempt.shape.dtype);
    swarm_.reserve.on_sent(worker, attempt, context.now);
    attempt.sequence_id = worker.ids.issue(attempt.id, answer_frame_bytes(attempt.shape),
                                           attempt.shape);
    swarm_.sessions.set_frame_limit(context, worker);

    attempt.sent_at = context.now;
    attempt.load = begin_load(round, attempt, worker);
    // The timeout includes the time to load experts: a worker that waits for a load is not stalled.
    attempt.timeout = worker.attempt_timeout(attempt.num_pairs, options_) + worker.load_slack();
    attempt.deadline = context.now + attempt.timeout;
    context.set_timer(attempt.deadline, TimerKind::attempt, attempt.id);

    attempt.predicted = worker.predicted(attempt.num_pairs, latency_, context.now) + attempt.load;
    if (!hedge && !again) policy_.on_first(context.now);
    if (!hedge) plan_second(context, round, attempt, worker);

    worker.decay_work(context.now);
    worker.work += attempt.num_pairs * worker.pair_cost_ms(attempt.num_pairs) / worker.power;
    swarm_.checks.count_pairs(worker, attempt.num_pairs);
    ++worker.groups_sent;
    ++counts_.groups_sent;
    if (hedge) ++(attempt.probe ? counts_.probes_sent : counts_.hedges_sent);

    if (worker.published_peer) {
        const CallSlice& slice = round.slices[slices.front()];
        Dispatch single{.sequence_id = attempt.sequence_id,
                        .layer = attempt.shape.layer,
                        .expert = slice.expert,
                        .dtype = attempt.shape.dtype};
        round.copy_rows(attempt, single.x);  // the rows of one expert are its pairs, in order
        std::swap(single.gates, group_.gates);
        context.send(worker, encode_dispatch(single, round.hidden_size, worker.lz4));
        std::swap(single.gates, group_.gates);
    } else {
        group_.sequence_id = attempt.sequence_id;
        context.send(
            worker, round.encode(attempt, group_, worker.lz4, swarm_.row_reader, worker.rows_held));
    }
}

Duration SwarmAttempts::begin_load(const Round& round, const Attempt& attempt, Worker& worker) {
    Duration load{};
    for (const std::uint32_t i : attempt.slices)
        load = std::max(load, worker.load_of(round.slices[i].unit));
    for (const std::uint32_t i : attempt.slices) worker.slot_guess.use(round.slices[i].unit);
    return load;
}

// Returns true if for each slice of the attempt another worker has the expert loaded in memory.
bool SwarmAttempts::is_loaded_elsewhere(const Round& round, const Attempt& attempt,
                                        const Worker& worker) const {
    return std::ranges::all_of(attempt.slices, [&](std::uint32_t i) {
        const std::uint32_t unit = round.slices[i].unit;
        const auto holders = swarm_.placement.directory().ready(unit);
        return std::ranges::any_of(holders, [&](const UnitHolder* holder) {
            const Worker& other = worker_of(holder);
            return &other != &worker && other.health.serves() && other.load_of(unit) == Duration{};
        });
    });
}

// Schedules the second attempt (hedge). If this attempt waits for experts to load, while another
// worker has them in memory, the hedge is sent as early as for an attempt without a load.
void SwarmAttempts::plan_second(EventContext& context, const Round& round, const Attempt& attempt,
                                const Worker& worker) {
    const bool may_skip_load = attempt.load > Duration{} &&
                               is_loaded_elsewhere(round, attempt, worker);
    const Duration expected = may_skip_load ? attempt.predicted - attempt.load : attempt.predicted;
    if (const auto wait = policy_.second_after(expected))
        context.set_timer(context.now + *wait, TimerKind::hedge, attempt.id);
}

// Charges failed groups to the retry budget. The groups are retried at once while the budget has
// room, and later otherwise, so that many errors do not cause as many retries.
void SwarmAttempts::pay_for_retries(EventContext& context, Round& round) {
    constexpr Duration later = 100ms;
    if (round.num_unpaid == 0 || (round.retry_at && *round.retry_at > context.now)) return;
    if (policy_.affords(context.now)) {
        policy_.pay(std::exchange(round.num_unpaid, 0));
    } else {
        round.retry_at = context.now + later;
        context.set_timer(*round.retry_at, TimerKind::round, round.id);
    }
}

void SwarmAttempts::compute_locally(EventContext& context, Round& round,
                                    std::vector<std::uint32_t> slices) {
    std::sort(slices.begin(), slices.end(), [&](std::uint32_t a, std::uint32_t b) {
        return std::tuple(round.slices[a].expert, a) < std::tuple(round.slices[b].expert, b);
    });

    Attempt& attempt = in_flight_.new_attempt(round, 0);
    attempt.slices = std::move(slices);
    round.begin(attempt);
    attempt.sent_at = context.now;
    attempt.num_pairs = 0;

    ComputeLocally call{.round = round.id,
                        .attempt = attempt.id,
                        .layer = static_cast<std::uint16_t>(round.layer),
                        .x = round.x};

    for (const std::uint32_t i : attempt.slices) {
        CallSlice& slice = round.slices[i];
        if (slice.dispatches > 0) ++counts_.redispatched;
        ++slice.dispatches;
        attempt.num_pairs += slice.num_pairs();

        if (call.experts.empty() || call.experts.back().expert != slice.expert)
            call.experts.push_back({.expert = slice.expert});
        call.experts.back().num_rows = static_cast<std::uint16_t>(call.experts.back().num_rows +
                                                                  slice.num_pairs());

        call.rows.insert(call.rows.end(), round.pair_row.begin() + slice.pair_begin,
                         round.pair_row.begin() + slice.pair_end);
        call.gates.insert(call.gates.end(), round.pair_gate.begin() + slice.pair_begin,
                          round.pair_gate.begin() + slice.pair_end);
    }

    swarm_.reserve.on_local_sent(round, attempt, context.now);
    context.out.push_back(std::move(call));
}

bool SwarmAttempts::send_probe(EventContext& context, Round& round, Worker& worker,
                               std::uint32_t pairs_max) {
    std::vector<std::uint32_t> slices;
    for (const AttemptId id : round.attempts) {
        slices.clear();
        std::uint32_t num_pairs = 0;
        for (const std::uint32_t i : in_flight_.find_attempt(id)->slices) {
            const CallSlice& slice = round.slices[i];
            if (slice.done || slice.latest_attempt() != id || slice.was_tried(worker.id) ||
                !worker.has(slice.unit, Worker::ready) || !worker.accepts(slice.dtype) ||
                num_pairs + slice.num_pairs() > worker.pairs_max ||
                (!slices.empty() &&
                 (worker.published_peer || num_pairs + slice.num_pairs() > pairs_max ||
                  round.slices[slices.front()].block != slice.block ||
                  round.slices[slices.front()].dtype != slice.dtype)))
                continue;
            slices.push_back(i);
            num_pairs += slice.num_pairs();
        }
        if (slices.empty()) continue;

        std::sort(slices.begin(), slices.end());
        send_attempt(context, round, worker, slices, AttemptKind::probe);
        return true;
    }
    return false;
}

void SwarmAttempts::on_hedge_time(EventContext& context, Attempt& attempt) {
    Round& round = *in_flight_.find_round(attempt.round);
    if (attempt.late || attempt.check_id != 0 || swarm_.health.all_silent() ||
        !policy_.affords(context.now))
        return;

    std::vector<std::uint32_t> slow;
    for (const std::uint32_t i : attempt.slices)
        if (!round.slices[i].done && round.slices[i].latest_attempt() == attempt.id)
            slow.push_back(i);
    if (slow.empty()) return;

    const std::size_t num_before = round.attempts.size();
    swarm_.cover.plan_cover(context, round, slow, true);
    policy_.pay(static_cast<std::uint32_t>(round.attempts.size() - num_before));
    if (!slow.empty() && compute_beside(context, round, attempt, slow)) return;

    // All holders are busy, most likely with slices of this very round. Try again when they are
    // idle.
    if (!slow.empty())
        context.set_timer(context.now + std::max<Duration>(2ms, attempt.predicted / 4),
                          TimerKind::hedge, attempt.id);
}

// Called when no holder is idle. The local backend computes the slices too, once the attempt has
// taken as long as a local computation would.
bool SwarmAttempts::compute_beside(EventContext& context, Round& round, const Attempt& attempt,
                                   std::span<const std::uint32_t> slices) {
    std::uint32_t num_pairs = 0;
    for (const std::uint32_t i : slices) num_pairs += round.slices[i].num_pairs();
    const std::optional<Duration> here = swarm_.reserve.local_time(num_pairs, context.now);
    if (!here || *here > context.now - attempt.sent_at) return false;

    policy_.pay(1);
    compute_locally(context, round, {slices.begin(), slices.end()});
    return true;
}

}  // namespace moex
