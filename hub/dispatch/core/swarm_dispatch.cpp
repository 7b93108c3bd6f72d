// Dispatch of a round: its open slices go to workers or to the local backend, or they wait.
#include <algorithm>
#include <cmath>
#include <limits>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {
// first pause before a retry after every replica failed, in a hub without a local backend
constexpr Duration retry_after = 20ms;
}  // namespace

// Sends every open slice of the round. It is called when a round opens, when an attempt failed, and
// when a worker has room for another group.
void SwarmRounds::dispatch(EventContext& context, Round& round) {
    if (round.ends_without_rest(context.now)) return finish_round(context, round);
    std::vector<std::uint32_t> open;
    for (std::uint32_t i = 0; i < round.slices.size(); ++i)
        if (round.slices[i].is_open() || (swarm_.health.all_silent() && !round.slices[i].done &&
                                          !in_flight_.is_local(round.slices[i])))
            open.push_back(i);

    if (open.empty()) {
        in_flight_.stop_waiting(round);
        round.give_up_at.reset();
        if (round.slices_left == 0) finish_round(context, round);
        return;
    }

    std::vector<std::uint32_t> local;
    if (options_.local_fallback) {
        std::erase_if(open, [&](std::uint32_t i) {
            if (!swarm_.health.all_silent() && round.slices[i].dispatches < options_.attempts_max)
                return false;
            local.push_back(i);
            return true;
        });
    }

    swarm_.attempts.pay_for_retries(context, round);
    if (!round.retry_at || *round.retry_at <= context.now) {
        std::vector<std::uint32_t> cover = open;
        for (std::uint32_t copy = 0; copy < round.copies && !cover.empty(); ++copy) {
            std::vector<std::uint32_t> left = cover;
            swarm_.cover.plan_cover(context, round, left, copy > 0);
            std::erase_if(cover, [&](std::uint32_t i) {
                return std::binary_search(left.begin(), left.end(), i);
            });
            if (copy == 0) open = left;
        }
    }

    // No worker is free for the slices that are still in `open`: decide which of them wait for a
    // worker.
    if (options_.local_fallback) split_waiting(context, round, open, local);
    if (!local.empty()) swarm_.attempts.compute_locally(context, round, std::move(local));
    swarm_.health.send_probes(context, round);
    swarm_.reserve.send_probes(context, round);
    swarm_.reserve.measure_local(context, round);
    wait_for_workers(context, round, open);
}

// Returns the predicted time at which the worker can be sent another group, never before `now`.
TimePoint SwarmRounds::free_at(const Worker& worker, TimePoint now) {
    TimePoint at = worker.busy_until;
    if (worker.ids.num_live() >= worker.queue_depth) {
        TimePoint first = TimePoint::max();
        for (const SequenceIds::Live& live : worker.ids.live()) {
            const Attempt& attempt = *in_flight_.find_attempt(live.attempt);
            first = std::min(first, attempt.sent_at + attempt.predicted);
        }
        at = std::max(at, first);
    }
    return std::max(at, now);
}

// Returns true if the slice should wait for a worker. With a local backend a slice waits only for a
// worker that can take it and that is free before the round's wait ends. It does not wait if many
// rounds wait already. `here`: predicted time of a local computation of all `num_open` pairs that
// are open; the slice does not wait for an answer that is predicted to arrive later than that.
bool SwarmRounds::has_worker_worth_waiting_for(const Round& round, const CallSlice& slice,
                                               TimePoint now, std::optional<Duration> here,
                                               std::uint32_t num_open) {
    if (round.wait_until && now >= *round.wait_until) return false;
    if (!round.waiting && in_flight_.waiting().size() >= options_.rounds_waiting_max) return false;

    const TimePoint free_by = round.wait_until.value_or(now + here.value_or(options_.queue_wait));
    const LatencyEstimates& latency = swarm_.attempts.latency();
    const auto holders = swarm_.placement.directory().ready(slice.unit);
    return std::ranges::any_of(holders, [&](const UnitHolder* holder) {
        const Worker& worker = worker_of(holder);
        if (!worker.health.serves() || !worker.accepts(slice.dtype) ||
            slice.num_pairs() > worker.pairs_max || slice.was_tried(worker.id) ||
            worker.busy_until > free_by)
            return false;
        if (!here) return !swarm_.reserve.is_on();
        if (swarm_.reserve.is_on())
            return swarm_.reserve.is_worth_waiting(worker, num_open, free_at(worker, now) - now,
                                                   *here);
        return free_at(worker, now) + worker.predicted(slice.num_pairs(), latency, now) <=
               now + *here;
    });
}

// Moves the slices that should not wait for a worker to `local`. For the other slices the round
// waits at most as long as a local computation takes. The round therefore never takes more than
// twice that time.
void SwarmRounds::split_waiting(EventContext& context, Round& round,
                                std::vector<std::uint32_t>& open,
                                std::vector<std::uint32_t>& local) {
    if (open.empty()) return;
    std::uint32_t num_pairs = 0;
    for (const std::uint32_t i : open) num_pairs += round.slices[i].num_pairs();

    const std::optional<Duration> here = swarm_.reserve.local_time(num_pairs, context.now);
    std::erase_if(open, [&](std::uint32_t i) {
        if (has_worker_worth_waiting_for(round, round.slices[i], context.now, here, num_pairs))
            return false;
        local.push_back(i);
        return true;
    });

    if (open.empty() || round.wait_until) return;
    round.wait_until = context.now + here.value_or(options_.queue_wait);
    context.set_timer(*round.wait_until, TimerKind::round, round.id);
}

// Returns true if slices of this size are accepted by a worker that holds the unit, loads it, or
// will soon be ordered to load it.
bool SwarmRounds::has_taker(const CallSlice& slice) const {
    const UnitDirectory& directory = swarm_.placement.directory();
    if (directory.holders(slice.unit).empty()) return directory.is_awaited(slice.unit);
    return std::ranges::any_of(directory.holders(slice.unit), [&](const UnitHolder* holder) {
        return slice.num_pairs() <= worker_of(holder).pairs_max;
    });
}

void SwarmRounds::wait_for_workers(EventContext& context, Round& round,
                                   std::vector<std::uint32_t>& open) {
    if (open.empty()) {
        in_flight_.stop_waiting(round);
        round.give_up_at.reset();
        return;
    }

    if (!round.waiting) {
        if (in_flight_.waiting().size() >= options_.rounds_waiting_max) {
            fail_round(context, round,
                       {ErrorCode::overloaded, text(in_flight_.waiting().size(),
                                                    " rounds are already waiting for a worker")});
            return;
        }
        in_flight_.wait(round);
    }

    if (options_.local_fallback) return;

    if (fail_without_taker(context, round, open) || fail_without_holder(context, round, open))
        return;

    forgive(context, round, open);
}

// Fails the round if a slice has more pairs than any of its holders accepts. A new round will cut
// the expert's pairs into smaller slices.
bool SwarmRounds::fail_without_taker(EventContext& context, Round& round,
                                     std::span<const std::uint32_t> open) {
    for (const std::uint32_t i : open) {
        const CallSlice& slice = round.slices[i];
        if (slice.num_pairs() <= WorkerPool::slice_pairs_min ||
            swarm_.placement.directory().holders(slice.unit).empty() || has_taker(slice) ||
            !slice.live.empty())
            continue;

        fail_round(context, round,
                   {ErrorCode::num_tokens_range,
                    text("no worker takes ", slice.num_pairs(), " pairs of expert ", slice.expert,
                         " of layer ", round.layer, " at a time")});
        return true;
    }
    return false;
}

// Fails the round if a slice has waited too long for a unit that no worker holds or loads. For a
// unit that a worker is loading, the slice waits until the round's deadline.
bool SwarmRounds::fail_without_holder(EventContext& context, Round& round,
                                      std::span<const std::uint32_t> open) {
    std::optional<TimePoint> give_up_at;
    for (const std::uint32_t i : open) {
        CallSlice& slice = round.slices[i];
        if (has_taker(slice) || !slice.live.empty()) {
            slice.unheld_since.reset();
            continue;
        }
        if (!slice.unheld_since) slice.unheld_since = context.now;

        const TimePoint until = *slice.unheld_since +
                                swarm_.placement.holder_wait_of(slice.unit, *slice.unheld_since);
        if (until <= context.now) {
            fail_round(
                context, round,
                {ErrorCode::unavailable, text("no worker holds expert ", slice.expert, " of layer ",
                                              round.layer, ", and local fallback is off")});
            return true;
        }
        give_up_at = std::min(give_up_at.value_or(until), until);
    }

    if (give_up_at && give_up_at != round.give_up_at)
        context.set_timer(*give_up_at, TimerKind::round, round.id);
    round.give_up_at = give_up_at;
    return false;
}

// Makes workers that failed eligible for the same slice again, after a pause that grows each time.
// Overdue workers become eligible again after a longer time, because a request or an answer may
// have been lost.
void SwarmRounds::forgive(EventContext& context, Round& round,
                          std::span<const std::uint32_t> open) {
    if (round.retry_at && *round.retry_at > context.now) return;

    bool any_forgiven = false;
    TimePoint ask_again = round.deadline;
    for (const std::uint32_t i : open) {
        CallSlice& slice = round.slices[i];
        const std::size_t num_tried = slice.tried.size();
        std::erase_if(slice.tried, [&](WorkerId worker) {
            const TimePoint at = overdue_retry_at(slice, worker);
            if (at > context.now) {
                ask_again = std::min(ask_again, at);
                return false;
            }
            if (at > TimePoint{}) make_room(context, *pool_.find(worker));
            return true;
        });
        any_forgiven |= slice.tried.size() < num_tried;
    }

    if (ask_again < round.deadline && ask_again != round.again_at)
        context.set_timer(ask_again, TimerKind::round, round.id);
    round.again_at = ask_again;
    if (any_forgiven) {
        constexpr std::uint32_t doublings_max = 6;
        round.retry_at = context.now +
                         retry_after * (1 << std::min(round.num_retries++, doublings_max));
        context.set_timer(*round.retry_at, TimerKind::round, round.id);
    }
}

// Returns the time at which an overdue worker may be sent the slice again. The wait is three times
// its timeout, but at most two seconds more than the timeout, and it doubles for each try without
// an answer: a slow worker must not be asked again and again. Quick bad answers do not count as
// tries, so that a lost request is retried before the round's deadline.
TimePoint SwarmRounds::overdue_retry_at(const CallSlice& slice, WorkerId worker) {
    constexpr Duration more_max = 2s;
    constexpr std::uint32_t doublings_max = 3;
    TimePoint at{};
    for (const AttemptId id : slice.live) {
        const Attempt& attempt = *in_flight_.find_attempt(id);
        if (attempt.worker != worker) continue;
        if (attempt.check_id != 0) return TimePoint::max();  // the worker has answered

        const Duration allowed = attempt.timeout + std::min(2 * attempt.timeout, more_max);
        const std::uint32_t silent = std::max(slice.dispatches - slice.answered, 1u),
                            doublings = std::min(silent - 1, doublings_max);
        at = std::max(at, attempt.sent_at + allowed * (1 << doublings));
    }
    return at;
}

// Cancels the oldest attempt in the worker's queue if the queue is full and all of its attempts are
// overdue, so that a new attempt can be sent.
void SwarmRounds::make_room(EventContext& context, Worker& worker) {
    if (worker.ids.num_live() < worker.queue_depth) return;
    const auto& live = worker.ids.live();
    if (std::any_of(live.begin(), live.end(),
                    [&](const auto& one) { return !in_flight_.find_attempt(one.attempt)->late; }))
        return;
    swarm_.attempts.cancel_attempt(context, *in_flight_.find_attempt(live.front().attempt));
}

void SwarmRounds::serve_waiting(EventContext& context) {
    if (!std::exchange(capacity_freed_, false) || in_flight_.waiting().empty()) return;

    const std::vector<RoundId> order = in_flight_.waiting();
    for (const RoundId id : order)
        if (Round* round = in_flight_.find_round(id)) dispatch(context, *round);
}

}  // namespace moex
