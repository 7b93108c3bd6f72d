// The ends of attempts: an attempt may be late, cancelled, dropped or answered. This file also
// updates what the hub learns from each end.
#include <algorithm>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {

void SwarmAttempts::drop_attempt(EventContext& context, Attempt& attempt, AttemptFailure failure) {
    Round& round = *in_flight_.find_round(attempt.round);
    Worker* worker = pool_.find(attempt.worker);

    for (const std::uint32_t i : attempt.slices) {
        CallSlice& slice = round.slices[i];
        const bool is_answer = failure == AttemptFailure::error ||
                               failure == AttemptFailure::bad_answer;
        if (is_answer && !attempt.hedge) ++slice.answered;
        if (failure == AttemptFailure::busy) {
            std::erase(slice.tried, attempt.worker);  // the worker may be asked again
            if (!attempt.hedge && slice.dispatches > 0) --slice.dispatches;  // BUSY was no attempt
        }
    }

    swarm_.rounds.free_capacity();

    if (worker != nullptr) {
        switch (failure) {
            case AttemptFailure::error: swarm_.health.add_failure(context, *worker, "error"); break;
            case AttemptFailure::bad_answer:
                swarm_.health.add_failure(context, *worker, "bad answer");
                break;
            case AttemptFailure::busy:
            case AttemptFailure::disconnect: break;
        }
    }

    if (failure == AttemptFailure::error || failure == AttemptFailure::bad_answer)
        ++round.num_unpaid;
    swarm_.checks.lose_witness(attempt);
    round.end(attempt);
    in_flight_.erase_attempt(attempt.id);
}

// Many workers compute one frame after the other. While the worker still answers requests that were
// sent earlier, it has not started on this attempt, so the deadline moves. For a worker that
// answers nothing, all attempts become late at the same time.
bool SwarmAttempts::is_queued_behind_others(EventContext& context, Attempt& attempt) {
    const Worker& worker = *pool_.find(attempt.worker);
    if (worker.answered_at <= attempt.sent_at || worker.answered_sent_at > attempt.sent_at)
        return false;

    const TimePoint deadline = worker.answered_at + attempt.timeout;
    if (deadline <= context.now) return false;

    attempt.deadline = deadline;
    context.set_timer(deadline, TimerKind::attempt, attempt.id);
    return true;
}

// Handles an attempt that is past its deadline. The slices are sent to another worker as well, and
// the first answer counts. The slow attempt stays open, because a slow worker is not a dead one.
void SwarmAttempts::on_attempt_late(EventContext& context, Attempt& attempt) {
    if (attempt.check_id != 0) return;  // the worker has answered and the judge is late
    if (is_queued_behind_others(context, attempt)) return;
    Round& round = *in_flight_.find_round(attempt.round);
    round.set_late(attempt);

    Worker& worker = *pool_.find(attempt.worker);
    ++worker.timeouts;
    ++counts_.timeouts;
    swarm_.checks.lose_witness(attempt);
    const RoundId round_id = round.id;
    swarm_.health.add_failure(context, worker, "timeout");
    swarm_.health.watch_for_silence(context, attempt);
    if (Round* open = in_flight_.find_round(round_id)) swarm_.rounds.dispatch(context, *open);
}

// Records an attempt that ends without an answer: its latency would have been longer than the
// time so far. Only an attempt that is still before its deadline counts as slow here, because a
// late attempt was counted as a failure already.
void SwarmAttempts::learn_unanswered(TimePoint now, const Attempt& attempt, Worker& worker) {
    if (2 * (now - attempt.sent_at) <= 3 * attempt.predicted + 2 * worker.load_slack()) return;
    // The worker is most likely still busy with this attempt, even if it was cancelled.
    constexpr Duration stall_min = 50ms, stall_max = 2s;
    worker.stalls_for = std::clamp(2 * worker.stalls_for, stall_min, stall_max);
    worker.stalls_until = now + worker.stalls_for;

    swarm_.reserve.on_cancelled(worker, attempt, now);
    if (!attempt.late) learn_latency(now, attempt, worker);
    if (attempt.late && !attempt.hedge) policy_.on_end(now - attempt.sent_at, attempt.predicted);
}

void SwarmAttempts::learn_latency(TimePoint now, const Attempt& attempt, Worker& worker) {
    const Duration took = now - attempt.sent_at;
    // The load time is predicted separately, so it does not count towards the worker's latency.
    const Duration worked = attempt.load == Duration{} ? took
                                                       : std::max(took - attempt.load, took / 4);
    worker.record_latency(worked, attempt.num_pairs, now);
    latency_[size_class_of(attempt.num_pairs)].record(worked, now);
    if (!attempt.hedge) policy_.on_end(took, attempt.predicted);
}

// Ends an attempt that the round no longer needs.
void SwarmAttempts::cancel_attempt(EventContext& context, Attempt& attempt) {
    Round& round = *in_flight_.find_round(attempt.round);
    if (attempt.check_id != 0) {
        // The worker has answered already. The judge's verdict on the answer still updates the
        // worker's trust record.
        swarm_.checks.on_cancelled(attempt);
        round.end(attempt);
        in_flight_.erase_attempt(attempt.id);
        return;
    }

    if (attempt.worker == 0) swarm_.reserve.on_local_cancelled(attempt.id, context.now);
    if (Worker* worker = pool_.find(attempt.worker)) {
        worker->ids.cancel(attempt.sequence_id, attempt.sent_at, attempt.num_pairs, context.now);
        swarm_.rounds.free_capacity();
    }

    swarm_.checks.lose_witness(attempt);

    // A probe is not cancelled: its purpose is to get an answer from the worker, whether a round
    // needs the answer or not.
    if (Worker* worker = pool_.find(attempt.worker); worker != nullptr && !attempt.probe) {
        ++counts_.cancels;
        learn_unanswered(context.now, attempt, *worker);
        context.send(*worker, encode_cancel(attempt.sequence_id));

        // The worker drops cancelled work without a reply. After many cancels without any frame
        // from the worker, the hub sends it a heartbeat, and no more work until a frame arrives.
        if (++worker->cancels_since_heard == worker->cancels_since_heard_max() &&
            worker->heartbeats.size() < options_.heartbeats_missed_max)
            swarm_.sessions.send_heartbeat(context, *worker, {});
    }

    round.end(attempt);
    in_flight_.erase_attempt(attempt.id);
}

void SwarmAttempts::accept_answer(EventContext& context, Attempt& attempt, std::vector<float> y,
                                  bool unsummed, Evidence evidence) {
    Round& round = *in_flight_.find_round(attempt.round);
    const std::uint32_t num_new = round.accept(attempt, std::move(y), unsummed, evidence);
    if (attempt.hedge && !attempt.probe && num_new > 0) ++counts_.hedges_won;
    round.end(attempt);
    in_flight_.erase_attempt(attempt.id);

    if (round.slices_left == 0 || round.ends_without_rest(context.now)) {
        swarm_.rounds.finish_round(context, round);
        return;
    }

    const std::vector<AttemptId> others = round.attempts;
    for (const AttemptId id : others)
        if (Attempt& other = *in_flight_.find_attempt(id); round.covered(other))
            cancel_attempt(context, other);
}

void SwarmAttempts::on_local(EventContext& context, AttemptId id, Result<std::vector<float>> y) {
    Attempt* attempt = in_flight_.find_attempt(id);
    if (attempt != nullptr && attempt->worker != 0) attempt = nullptr;
    swarm_.reserve.on_local_end(id, attempt, context.now);
    if (attempt == nullptr) return;  // the attempt's round has ended

    Round& round = *in_flight_.find_round(attempt->round);
    if (!y.ok()) {
        swarm_.rounds.fail_round(context, round, y.error());
        return;
    }

    MOEX_CHECK(y->size() == std::size_t{attempt->num_pairs} * round.hidden_size,
               text("local answer has ", y->size(), " values for ", attempt->num_pairs,
                    " pairs of ", round.hidden_size));
    if (!within_norm_bound(round, *attempt, square_sums_of(*y, round.hidden_size), true,
                           std::numeric_limits<double>::max())) {
        swarm_.rounds.fail_round(
            context, round,
            {ErrorCode::non_finite,
             text("layer ", round.layer, ": the local backend's answer is not finite")});
        return;
    }

    accept_answer(context, *attempt, std::move(y).value(), true, Evidence::verified);
    swarm_.end_event(context);
}

}  // namespace moex
