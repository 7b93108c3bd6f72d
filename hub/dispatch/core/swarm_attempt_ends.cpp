// The ends of attempts: late, cancelled, dropped or answered, and what the hub learns from each.
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

// Many workers compute one frame after the other. The time of this attempt has not begun while the
// worker answers requests that were sent before it. A worker that answers nothing is late with all
// of its attempts at once.
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

// The deadline has passed. The slices are sent to another worker as well, and the first answer
// counts: a slow worker is not a dead one.
void SwarmAttempts::on_attempt_late(EventContext& context, Attempt& attempt) {
    if (attempt.check_id != 0) return;  // the judge is late, not the worker
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

// The attempt ends without an answer, which would have taken longer. Only an attempt before its
// deadline counts as slow here: a late one was counted as a failure already.
void SwarmAttempts::learn_unanswered(TimePoint now, const Attempt& attempt, Worker& worker) {
    if (2 * (now - attempt.sent_at) <= 3 * attempt.predicted + 2 * worker.load_slack()) return;
    // The worker is most likely still busy with this attempt, even if it was cancelled.
    constexpr Duration stall_min = 50ms, stall_max = 2s;
    worker.stalls_for = std::clamp(2 * worker.stalls_for, stall_min, stall_max);
    worker.stalls_until = now + worker.stalls_for;

    if (!attempt.late) learn_latency(now, attempt, worker);
    if (attempt.late && !attempt.hedge) policy_.on_end(now - attempt.sent_at, attempt.predicted);
}

void SwarmAttempts::learn_latency(TimePoint now, const Attempt& attempt, Worker& worker) {
    const Duration took = now - attempt.sent_at;
    // The load is predicted separately, so it is not part of the worker's speed.
    const Duration worked = attempt.load == Duration{} ? took
                                                       : std::max(took - attempt.load, took / 4);
    worker.record_latency(worked, attempt.num_pairs, now);
    latency_[size_class_of(attempt.num_pairs)].record(worked, now);
    if (!attempt.hedge) policy_.on_end(took, attempt.predicted);
}

// Ends an attempt that is no longer needed.
void SwarmAttempts::cancel_attempt(EventContext& context, Attempt& attempt) {
    Round& round = *in_flight_.find_round(attempt.round);
    if (attempt.check_id != 0) {
        // The worker has answered already. The verdict on it follows all the same.
        swarm_.checks.on_cancelled(attempt);
        round.end(attempt);
        in_flight_.erase_attempt(attempt.id);
        return;
    }

    if (Worker* worker = pool_.find(attempt.worker)) {
        worker->ids.cancel(attempt.sequence_id, attempt.sent_at, attempt.num_pairs, context.now);
        swarm_.rounds.free_capacity();
    }

    swarm_.checks.lose_witness(attempt);

    // A probe is not cancelled: its purpose is the worker's answer, needed or not.
    if (Worker* worker = pool_.find(attempt.worker); worker != nullptr && !attempt.probe) {
        ++counts_.cancels;
        learn_unanswered(context.now, attempt, *worker);
        context.send(*worker, encode_cancel(attempt.sequence_id));

        // The worker drops cancelled work without a reply. After many cancels without a sign of
        // life it is sent a heartbeat, and no more work until a frame arrives.
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
    if (attempt.hedge && num_new > 0) ++counts_.hedges_won;
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
    if (attempt == nullptr || attempt->worker != 0) return;  // its round has ended

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

    local_latency_[size_class_of(attempt->num_pairs)].record(context.now - attempt->sent_at,
                                                             context.now);
    accept_answer(context, *attempt, std::move(y).value(), true, Evidence::verified);
    swarm_.end_event(context);
}

}  // namespace moex
