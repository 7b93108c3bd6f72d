// Workers in reserve: times of the local backend and of the workers, verdicts, and probes.
#include <algorithm>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {
Duration work_of(const std::optional<RoundTimes>& times) {
    return times ? Duration(std::chrono::microseconds(times->worker_us)) : Duration{};
}
}  // namespace

SwarmReserve::SwarmReserve(SwarmState& swarm) : SwarmPart(swarm), rule_(options_.reserve) {}

std::optional<Duration> SwarmReserve::local_time(std::uint32_t num_pairs, TimePoint now) const {
    const std::optional<Duration> own = rule_.hub_time(num_pairs);
    if (!options_.local_fallback || !own) return std::nullopt;
    const Duration before = local_.empty() ? Duration{} : std::max(local_until_ - now, Duration{});
    return before + *own;
}

void SwarmReserve::on_local_sent(const Round& round, Attempt& attempt, TimePoint now) {
    was_computed_.resize(swarm_.placement.directory().num_units());
    bool is_cold = false;
    for (const std::uint32_t i : attempt.slices) {
        is_cold |= !was_computed_[round.slices[i].unit];
        was_computed_[round.slices[i].unit] = true;
    }
    attempt.predicted = rule_.hub_time(attempt.num_pairs).value_or(Duration{});
    local_until_ = (local_.empty() ? now : std::max(now, local_until_)) + attempt.predicted;
    local_.push_back({.attempt = attempt.id, .is_cold = is_cold});
}

void SwarmReserve::forget_local(AttemptId attempt, TimePoint now) {
    std::erase_if(local_, [&](const LocalCall& call) { return call.attempt == attempt; });
    if (local_.empty()) local_until_ = now;
}

void SwarmReserve::on_local_end(AttemptId id, const Attempt* attempt, TimePoint now) {
    // The backend computes one call after the other, so this call began when the one before ended.
    const TimePoint before = std::exchange(local_ended_at_, now);
    const bool is_cold = std::ranges::any_of(
        local_, [&](const LocalCall& call) { return call.attempt == id && call.is_cold; });
    forget_local(id, now);

    if (attempt != nullptr && (!is_cold || !rule_.hub_time(attempt->num_pairs)))
        rule_.hub_took(attempt->num_pairs, now - std::max(before, attempt->sent_at), now);
}

void SwarmReserve::on_local_measured(std::uint32_t num_pairs, Duration took, TimePoint now) {
    is_measuring_ = false;
    local_ended_at_ = now;
    if (took < Duration::max()) rule_.hub_measured(num_pairs, took, now);
}

// Each worker is judged for an even part of the round, as the router would give it.
std::uint32_t SwarmReserve::begin_pass(std::uint32_t num_pairs, std::size_t num_workers) {
    const auto even = static_cast<std::uint32_t>(num_pairs / std::max<std::size_t>(1, num_workers));
    pairs_each_ = std::max({1u, even, std::min(num_pairs, Router::share_pairs_min)});
    return pairs_each_;
}

bool SwarmReserve::is_worth_asking(Worker& worker, std::uint32_t num_pairs,
                                   std::optional<Duration> here, TimePoint now) {
    if (!here) return false;
    return rule_.judge(worker.worth, num_pairs, queue_of(worker, now), *here, now) == Worth::faster;
}

bool SwarmReserve::is_worth_waiting(const Worker& worker, std::uint32_t num_pairs, Duration wait,
                                    Duration here) const {
    const std::optional<Duration> at_most = worker.worth.times().at_most(num_pairs);
    return at_most && wait + *at_most <= here;
}

// Returns how much later than usual the worker answers a further request. A worker computes one
// request after the other, but the way to the worker and back takes several at a time.
Duration SwarmReserve::queue_of(const Worker& worker, TimePoint now) {
    if (worker.ids.num_live() == 0) return {};
    Duration last{};
    for (const SequenceIds::Live& live : worker.ids.live()) {
        const Attempt& attempt = *in_flight_.find_attempt(live.attempt);
        last = std::max(last, attempt.sent_at + attempt.predicted - now);
    }
    const Duration usual = worker.worth.times().at_most(pairs_each_).value_or(Duration{}),
                   work = worker.worth.work() > Duration{} ? worker.worth.work() : usual;
    return std::max(last + work - usual, Duration{});
}

void SwarmReserve::on_sent(Worker& worker, Attempt& attempt, TimePoint now) {
    attempt.queued = is_on() ? queue_of(worker, now) : Duration{};
    if (!attempt.hedge) worker.worth.note_asked(now);
}

void SwarmReserve::on_answer(Worker& worker, const Attempt& attempt,
                             std::optional<RoundTimes> times, TimePoint now) {
    const Duration work = work_of(times);
    if (worker.worth.is_probe(attempt.sequence_id))
        return rule_.probe_answered(worker.worth, work, now);
    const Duration took = now - attempt.sent_at - attempt.load;
    worker.worth.record(attempt.num_pairs, std::max(took - attempt.queued, took / 4), work, now);
}

void SwarmReserve::on_late_answer(Worker& worker, std::uint32_t sequence_id,
                                  const SequenceIds::Cancelled& request, TimePoint now) {
    if (worker.worth.is_probe(sequence_id))
        rule_.probe_answered(worker.worth, worker.worth.work(), now);
    else
        worker.worth.record(request.num_pairs, now - request.sent_at, Duration{}, now);
}

// The worker would have needed longer than the time until now.
void SwarmReserve::on_cancelled(Worker& worker, const Attempt& attempt, TimePoint now) {
    const Duration took = now - attempt.sent_at - attempt.queued - attempt.load;
    if (took > worker.worth.times().at_most(attempt.num_pairs).value_or(Duration{}))
        worker.worth.record(attempt.num_pairs, took, Duration{}, now);
}

// Sends copies of the round's requests to the workers that are to be measured now.
void SwarmReserve::send_probes(EventContext& context, Round& round) {
    if (!is_on() || round.attempts.empty() || swarm_.health.all_silent()) return;

    for (const CallSlice& slice : round.slices) {
        if (slice.done) continue;
        for (UnitHolder* holder : swarm_.placement.directory().ready(slice.unit)) {
            Worker& worker = worker_of(holder);
            const std::uint32_t num_pairs = std::min(worker.pairs_open, pairs_each_);
            if (!worker.health.serves() || !swarm_.cover.eligible(worker, context.now) ||
                !rule_.may_probe(worker.worth, num_pairs, context.now) ||
                !swarm_.attempts.send_probe(context, round, worker, pairs_each_))
                continue;
            const Attempt& probe = *in_flight_.find_attempt(round.attempts.back());
            rule_.probe_sent(worker.worth, probe.sequence_id, probe.num_pairs, context.now);
        }
    }
}

// Lets the local backend compute a round, too, that only workers compute. Without it a hub with
// fast workers would not know its own time.
void SwarmReserve::measure_local(EventContext& context, const Round& round) {
    if (!is_on() || is_measuring_ || !local_.empty() || round.attempts.empty()) return;
    const auto num_pairs = static_cast<std::uint32_t>(round.pair_row.size());
    if (!rule_.measure_hub(num_pairs, context.now)) return;

    ComputeLocally call{.round = 0,
                        .attempt = 0,
                        .layer = static_cast<std::uint16_t>(round.layer),
                        .rows = round.pair_row,
                        .gates = round.pair_gate,
                        .x = round.x};
    for (const CallSlice& slice : round.slices) {
        if (call.experts.empty() || call.experts.back().expert != slice.expert)
            call.experts.push_back({.expert = slice.expert});
        call.experts.back().num_rows = static_cast<std::uint16_t>(call.experts.back().num_rows +
                                                                  slice.num_pairs());
    }
    is_measuring_ = true;
    context.out.push_back(std::move(call));
}

}  // namespace moex
