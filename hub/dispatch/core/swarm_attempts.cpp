// Attempts: groups under way to one worker, or to the local backend, and how they end.
#include <algorithm>

#include "hub/dispatch/core/swarm_state.h"
#include "protocol/lz4_block.h"

namespace moex {
namespace {
constexpr std::size_t attempts_kept_max = 64;  // attempts kept for reuse

// No answer to a group of this shape is a longer frame, compressed or not, and no RESULT of the
// five messages either, whose question has one row per pair.
std::uint64_t answer_frame_bytes(const GroupShape& shape) {
    constexpr std::uint64_t headers_bytes_max = 64;  // RESULT has 28, GROUP_RESULT 32
    const std::uint32_t rows = shape.unsummed ? shape.num_pairs : shape.num_tokens;
    return headers_bytes_max +
           lz4_block_bytes_max(wire_rows_bytes(shape.dtype, rows, shape.hidden_dim));
}
}  // namespace

Attempt* SwarmState::find_attempt(AttemptId id) {
    const auto found = attempts.find(id);
    return found == attempts.end() ? nullptr : found->second.get();
}

Attempt& SwarmState::new_attempt(Round& round, WorkerId worker) {
    std::unique_ptr<Attempt> fresh;
    if (attempt_reserve.empty()) {
        fresh = std::make_unique<Attempt>();
    } else {
        fresh = std::move(attempt_reserve.back());
        attempt_reserve.pop_back();
    }

    Attempt& attempt = *fresh;
    attempt.id = ++last_attempt;
    attempt.round = round.id;
    attempt.worker = worker;
    attempt.hedge = attempt.late = attempt.probe = false;
    attempt.check_id = attempt.witness_of_check = 0;
    attempt.load = {};
    attempt.slices.clear();
    attempt.tokens.clear();
    attempts[attempt.id] = std::move(fresh);
    round.attempts.push_back(attempt.id);

    return attempt;
}

void SwarmState::erase_attempt(AttemptId id) {
    auto node = attempts.extract(id);
    if (node && attempt_reserve.size() < attempts_kept_max)
        attempt_reserve.push_back(std::move(node.mapped()));
}

void SwarmState::send_attempt(EventContext& context, Round& round, Worker& worker,
                              std::span<const std::uint32_t> slices, bool hedge) {
    Attempt& attempt = new_attempt(round, worker.id);
    attempt.hedge = hedge;
    attempt.slices.assign(slices.begin(), slices.end());
    round.begin(attempt);

    const bool again = !hedge && std::any_of(slices.begin(), slices.end(), [&](std::uint32_t i) {
        return round.slices[i].dispatches > 0;
    });
    if (again) ++counts.groups_again;

    for (const std::uint32_t i : slices) {
        CallSlice& slice = round.slices[i];
        if (hedge) {
            slice.hedged = true;
        } else {
            if (slice.dispatches > 0) ++counts.redispatched;
            ++slice.dispatches;
        }
        slice.tried.push_back(worker.id);
        slice.unheld_since.reset();
    }

    round.fill_group(attempt, group);
    attempt.x_int8 = group.x_int8 = worker.takes_x_int8(attempt.shape.dtype);
    attempt.sequence_id = worker.ids.issue(attempt.id, answer_frame_bytes(attempt.shape),
                                           attempt.shape);
    tell_frame_limit(context, worker);

    attempt.sent_at = context.now;
    attempt.load = begin_load(round, attempt, worker);
    // A load is no stall.
    attempt.timeout = worker.attempt_timeout(attempt.num_pairs, options) + worker.load_slack();
    attempt.deadline = context.now + attempt.timeout;
    context.set_timer(attempt.deadline, TimerKind::attempt, attempt.id);

    attempt.predicted = worker.predicted(attempt.num_pairs, latency, context.now) + attempt.load;
    if (!hedge && !again) policy.on_first(context.now);
    if (!hedge) plan_second(context, round, attempt, worker);

    worker.decay_work(context.now);
    worker.work += attempt.num_pairs * worker.pair_cost_ms(attempt.num_pairs) / worker.power;
    newcomers.add(attempt.num_pairs, !worker.is_proven);
    ++worker.groups_sent;
    ++counts.groups_sent;
    if (hedge) ++counts.hedges_sent;

    if (worker.published_peer) {
        const CallSlice& slice = round.slices[slices.front()];
        Dispatch single{.sequence_id = attempt.sequence_id,
                        .layer = attempt.shape.layer,
                        .expert = slice.expert,
                        .dtype = attempt.shape.dtype};
        round.copy_rows(attempt, single.x);  // the rows of one expert are its pairs, in order
        std::swap(single.gates, group.gates);
        context.send(worker, encode_dispatch(single, round.hidden_size, worker.lz4));
        std::swap(single.gates, group.gates);
    } else {
        group.sequence_id = attempt.sequence_id;
        context.send(worker,
                     round.encode(attempt, group, worker.lz4, row_reader, worker.rows_held));
    }
}

Duration SwarmState::begin_load(const Round& round, const Attempt& attempt, Worker& worker) {
    Duration load{};
    for (const std::uint32_t i : attempt.slices)
        load = std::max(load, worker.load_of(round.slices[i].unit));
    for (const std::uint32_t i : attempt.slices) worker.slot_guess.use(round.slices[i].unit);
    return load;
}

// Each of its slices has another holder that need not load it.
bool SwarmState::is_loaded_elsewhere(const Round& round, const Attempt& attempt,
                                     const Worker& worker) const {
    return std::ranges::all_of(attempt.slices, [&](std::uint32_t i) {
        const std::uint32_t unit = round.slices[i].unit;
        return std::ranges::any_of(directory.ready(unit), [&](const UnitHolder* holder) {
            const Worker& other = worker_of(holder);
            return &other != &worker && other.health.serves() && other.load_of(unit) == Duration{};
        });
    });
}

// What waits for a load, and lies in somebody else's memory, has its second as early as one without
// a load.
void SwarmState::plan_second(EventContext& context, const Round& round, const Attempt& attempt,
                             const Worker& worker) {
    const bool may_skip_load = attempt.load > Duration{} &&
                               is_loaded_elsewhere(round, attempt, worker);
    const Duration expected = may_skip_load ? attempt.predicted - attempt.load : attempt.predicted;
    if (const auto wait = policy.second_after(expected))
        context.set_timer(context.now + *wait, TimerKind::hedge, attempt.id);
}

void SwarmState::compute_locally(EventContext& context, Round& round,
                                 std::vector<std::uint32_t> slices) {
    std::sort(slices.begin(), slices.end(), [&](std::uint32_t a, std::uint32_t b) {
        return std::tuple(round.slices[a].expert, a) < std::tuple(round.slices[b].expert, b);
    });

    Attempt& attempt = new_attempt(round, 0);
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
        if (slice.dispatches > 0) ++counts.redispatched;
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

    context.out.push_back(std::move(call));
}

void SwarmState::drop_attempt(EventContext& context, Attempt& attempt, Failure failure) {
    Round& round = *find_round(attempt.round);
    Worker* worker = pool.find(attempt.worker);

    for (const std::uint32_t i : attempt.slices) {
        CallSlice& slice = round.slices[i];
        const bool is_answer = failure == Failure::error || failure == Failure::bad_answer;
        if (is_answer && !attempt.hedge) ++slice.answered;
        if (failure == Failure::busy) {
            std::erase(slice.tried, attempt.worker);  // it may be asked again
            if (!attempt.hedge && slice.dispatches > 0)
                --slice.dispatches;  // and that was no attempt
        }
    }

    capacity_freed = true;

    if (worker != nullptr) {
        switch (failure) {
            case Failure::error: add_failure(context, *worker, "error"); break;
            case Failure::bad_answer: add_failure(context, *worker, "bad answer"); break;
            case Failure::busy:
            case Failure::disconnect: break;
        }
    }

    if (failure == Failure::error || failure == Failure::bad_answer) ++round.num_unpaid;
    if (attempt.witness_of_check != 0) witnesses_lost.push_back(attempt.witness_of_check);
    round.end(attempt);
    erase_attempt(attempt.id);
}

// Many work on one frame after the other. While what was sent before this one is being answered its
// time has not begun; who answers nothing is late with all of it at once.
bool SwarmState::is_queued_behind_others(EventContext& context, Attempt& attempt) {
    const Worker& worker = *pool.find(attempt.worker);
    if (worker.answered_at <= attempt.sent_at || worker.answered_sent_at > attempt.sent_at)
        return false;

    const TimePoint deadline = worker.answered_at + attempt.timeout;
    if (deadline <= context.now) return false;

    attempt.deadline = deadline;
    context.set_timer(deadline, TimerKind::attempt, attempt.id);
    return true;
}

// Its time is over. What it was asked goes to somebody else as well, and whoever answers first
// is believed: a slow worker is no dead one.
void SwarmState::on_attempt_late(EventContext& context, Attempt& attempt) {
    if (attempt.check_id != 0) return;  // it is not the worker that takes its time
    if (is_queued_behind_others(context, attempt)) return;
    Round& round = *find_round(attempt.round);
    round.set_late(attempt);

    Worker& worker = *pool.find(attempt.worker);
    ++worker.timeouts;
    ++counts.timeouts;
    if (attempt.witness_of_check != 0) witnesses_lost.push_back(attempt.witness_of_check);
    const RoundId round_id = round.id;
    add_failure(context, worker, "timeout");
    watch_for_silence(context, attempt);
    if (Round* open = find_round(round_id)) dispatch(context, *open);
}

void SwarmState::on_hedge_time(EventContext& context, Attempt& attempt) {
    Round& round = *find_round(attempt.round);
    if (attempt.late || attempt.check_id != 0 || all_silent || !policy.affords(context.now)) return;

    std::vector<std::uint32_t> slow;
    for (const std::uint32_t i : attempt.slices)
        if (!round.slices[i].done && round.slices[i].latest_attempt() == attempt.id)
            slow.push_back(i);
    if (slow.empty()) return;

    const std::size_t num_before = round.attempts.size();
    plan_cover(context, round, slow, true);
    policy.pay(static_cast<std::uint32_t>(round.attempts.size() - num_before));
    if (!slow.empty() && compute_beside(context, round, attempt, slow)) return;

    // Those who hold it have work of their own, most likely of this very round: soon they will not.
    if (!slow.empty())
        context.set_timer(context.now + std::max<Duration>(2ms, attempt.predicted / 4),
                          TimerKind::hedge, attempt.id);
}

// Nobody is idle who holds it: the local backend, once the attempt has taken as long as that will.
bool SwarmState::compute_beside(EventContext& context, Round& round, const Attempt& attempt,
                                std::span<const std::uint32_t> slices) {
    std::uint32_t num_pairs = 0;
    for (const std::uint32_t i : slices) num_pairs += round.slices[i].num_pairs();
    const std::optional<Duration> here = local_time(num_pairs);
    if (!here || *here > context.now - attempt.sent_at) return false;

    policy.pay(1);
    compute_locally(context, round, {slices.begin(), slices.end()});
    return true;
}

// It ends without an answer, which would have taken longer. A late one was a failure already: what
// hangs is not slow.
void SwarmState::learn_unanswered(TimePoint now, const Attempt& attempt, Worker& worker) {
    if (2 * (now - attempt.sent_at) <= 3 * attempt.predicted + 2 * worker.load_slack()) return;
    // most likely it is busy with that one still, cancelled or not
    constexpr Duration stall_min = 50ms, stall_max = 2s;
    worker.stalls_for = std::clamp(2 * worker.stalls_for, stall_min, stall_max);
    worker.stalls_until = now + worker.stalls_for;

    if (!attempt.late) learn_latency(now, attempt, worker);
    if (attempt.late && !attempt.hedge) policy.on_end(now - attempt.sent_at, attempt.predicted);
}

void SwarmState::learn_latency(TimePoint now, const Attempt& attempt, Worker& worker) {
    const Duration took = now - attempt.sent_at;
    // Without its load, which is predicted on its own: the rest is how fast it is.
    const Duration worked = attempt.load == Duration{} ? took
                                                       : std::max(took - attempt.load, took / 4);
    worker.record_latency(worked, attempt.num_pairs, now);
    latency[size_class_of(attempt.num_pairs)].record(worked, now);
    if (!attempt.hedge) policy.on_end(took, attempt.predicted);
}

// The attempt is not needed any more.
void SwarmState::cancel_attempt(EventContext& context, Attempt& attempt) {
    Round& round = *find_round(attempt.round);
    if (attempt.check_id != 0) {
        // The worker has done its part: the verdict on it comes all the same.
        checks.at(attempt.check_id).attempt = 0;
        if (!options.checks.judge) checks.erase(attempt.check_id);
        round.end(attempt);
        erase_attempt(attempt.id);
        return;
    }

    if (Worker* worker = pool.find(attempt.worker)) {
        worker->ids.cancel(attempt.sequence_id, attempt.sent_at, attempt.num_pairs, context.now);
        capacity_freed = true;
    }

    if (attempt.witness_of_check != 0) witnesses_lost.push_back(attempt.witness_of_check);

    // What a probe is for is the worker's answer, needed or not.
    if (Worker* worker = pool.find(attempt.worker); worker != nullptr && !attempt.probe) {
        ++counts.cancels;
        learn_unanswered(context.now, attempt, *worker);
        context.send(*worker, encode_cancel(attempt.sequence_id));

        // It drops cancelled work without a word. One that has not been heard
        // of for a while is asked whether it is there, and gets no more.
        if (++worker->cancels_since_heard == worker->cancels_since_heard_max() &&
            worker->heartbeats.size() < options.heartbeats_missed_max)
            send_heartbeat(context, *worker, {});
    }

    round.end(attempt);
    erase_attempt(attempt.id);
}

void SwarmState::accept_answer(EventContext& context, Attempt& attempt, std::vector<float> y,
                               bool unsummed, Evidence evidence) {
    Round& round = *find_round(attempt.round);
    const std::uint32_t num_new = round.accept(attempt, std::move(y), unsummed, evidence);
    if (attempt.hedge && num_new > 0) ++counts.hedges_won;
    round.end(attempt);
    erase_attempt(attempt.id);

    if (round.slices_left == 0 || round.ends_without_rest(context.now)) {
        finish_round(context, round);
        return;
    }

    const std::vector<AttemptId> others = round.attempts;
    for (const AttemptId id : others)
        if (Attempt& other = *find_attempt(id); round.covered(other))
            cancel_attempt(context, other);
}

}  // namespace moex
