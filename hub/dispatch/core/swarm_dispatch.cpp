// Who computes what: covers of a round's open slices
// by few workers, waiting, and the ends of rounds.
#include <algorithm>
#include <cmath>
#include <limits>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {
// when every replica has failed and there is no local backend
constexpr Duration retry_after = 20ms;
constexpr std::size_t rounds_kept_max = 64;  // rounds kept for reuse
}  // namespace

Round* SwarmState::find_round(RoundId id) {
    const auto found = rounds.find(id);
    return found == rounds.end() ? nullptr : found->second.get();
}

bool SwarmState::eligible(const Worker& worker, TimePoint now) const {
    return worker.num_ready > 0 && worker.health.serves_in_need() &&
           worker.ids.num_live() < worker.queue_depth && worker.busy_until <= now &&
           worker.cancels_since_heard < worker.cancels_since_heard_max() &&
           !worker.loading_in_order();
}

bool SwarmState::in_need(std::uint32_t unit) const {
    return !options.local_fallback &&
           std::ranges::none_of(directory.ready(unit), [](const UnitHolder* holder) {
               return worker_of(holder).health.serves();
           });
}

bool SwarmState::is_local(const CallSlice& slice) {
    return !slice.live.empty() && find_attempt(slice.live.back())->worker == 0;
}

std::optional<Duration> SwarmState::local_time(std::uint32_t num_pairs) const {
    const LatencyEstimate& here = local_latency[size_class_of(num_pairs)];
    if (!options.local_fallback || here.num_samples == 0) return std::nullopt;
    return Duration(static_cast<std::int64_t>(1e6 * here.mean_ms));
}

// When it can be asked again, as far as is known. Never before now.
TimePoint SwarmState::free_at(const Worker& worker, TimePoint now) {
    TimePoint at = worker.busy_until;
    if (worker.ids.num_live() >= worker.queue_depth) {
        TimePoint first = TimePoint::max();
        for (const SequenceIds::Live& live : worker.ids.live()) {
            const Attempt& attempt = *find_attempt(live.attempt);
            first = std::min(first, attempt.sent_at + attempt.predicted);
        }
        at = std::max(at, first);
    }
    return std::max(at, now);
}

// With a local backend at hand a slice waits for a worker only where one that could take it will
// be free before the round's patience ends, and where not too many rounds wait already. `here`:
// how long the local backend would take; an answer that is expected later is not waited for.
bool SwarmState::has_worker_worth_waiting_for(const Round& round, const CallSlice& slice,
                                              TimePoint now, std::optional<Duration> here) {
    if (round.wait_until && now >= *round.wait_until) return false;
    if (!round.waiting && waiting.size() >= options.rounds_waiting_max) return false;

    const TimePoint free_by = round.wait_until.value_or(now + here.value_or(options.queue_wait));
    return std::ranges::any_of(directory.ready(slice.unit), [&](const UnitHolder* holder) {
        const Worker& worker = worker_of(holder);
        if (!worker.health.serves() || !worker.accepts(slice.dtype) ||
            slice.num_pairs() > worker.pairs_max || slice.was_tried(worker.id) ||
            worker.busy_until > free_by)
            return false;
        return !here || free_at(worker, now) + worker.predicted(slice.num_pairs(), latency, now) <=
                            now + *here;
    });
}

// What nobody is worth waiting for goes to `local`; for the rest a round waits as long as computing
// it here takes, so that it never takes more than twice that.
void SwarmState::keep_what_may_wait(EventContext& context, Round& round,
                                    std::vector<std::uint32_t>& open,
                                    std::vector<std::uint32_t>& local) {
    if (open.empty()) return;
    std::uint32_t num_pairs = 0;
    for (const std::uint32_t i : open) num_pairs += round.slices[i].num_pairs();

    const std::optional<Duration> here = local_time(num_pairs);
    std::erase_if(open, [&](std::uint32_t i) {
        if (has_worker_worth_waiting_for(round, round.slices[i], context.now, here)) return false;
        local.push_back(i);
        return true;
    });

    if (open.empty() || round.wait_until) return;
    round.wait_until = context.now + here.value_or(options.queue_wait);
    context.set_timer(*round.wait_until, TimerKind::round, round.id);
}

// Whether somebody who holds its unit, or loads it or will soon, takes slices of this size.
bool SwarmState::has_taker(const CallSlice& slice) const {
    if (directory.holders(slice.unit).empty()) return directory.is_awaited(slice.unit);
    return std::ranges::any_of(directory.holders(slice.unit), [&](const UnitHolder* holder) {
        return slice.num_pairs() <= worker_of(holder).pairs_max;
    });
}

// The most pairs of each of a layer's experts that a worker who holds it takes in one group. A
// weak one gets slices that are small enough, and cuts nobody else's. Empty without weak ones.
std::span<const std::uint32_t> SwarmState::slice_pairs_max(std::uint32_t layer) {
    if (num_weak == 0) return {};

    pairs_max_of.assign(options.limits.num_experts, WorkerPool::slice_pairs_min);
    for (std::uint32_t expert = 0; expert < options.limits.num_experts; ++expert)
        for (const UnitHolder* holder : directory.ready(unit_of(layer, expert)))
            pairs_max_of[expert] = std::max(pairs_max_of[expert], worker_of(holder).pairs_max);
    return pairs_max_of;
}

void SwarmState::set_pairs_max(Worker& worker, std::uint32_t pairs) {
    constexpr std::uint32_t no_bound = std::numeric_limits<std::uint32_t>::max();
    num_weak -= worker.pairs_max != no_bound;
    worker.pairs_max = pairs;
    num_weak += worker.pairs_max != no_bound;
}

// Gives out every slice that nobody works on. Called when a round
// opens, when an attempt failed, and when a worker became free.
void SwarmState::dispatch(EventContext& context, Round& round) {
    if (round.ends_without_rest(context.now)) return finish_round(context, round);
    std::vector<std::uint32_t> open;
    for (std::uint32_t i = 0; i < round.slices.size(); ++i)
        if (round.slices[i].is_open() ||
            (all_silent && !round.slices[i].done && !is_local(round.slices[i])))
            open.push_back(i);

    if (open.empty()) {
        std::erase(waiting, round.id);
        round.waiting = false;
        round.give_up_at.reset();
        if (round.slices_left == 0) finish_round(context, round);
        return;
    }

    std::vector<std::uint32_t> local;
    if (options.local_fallback) {
        std::erase_if(open, [&](std::uint32_t i) {
            if (!all_silent && round.slices[i].dispatches < options.attempts_max) return false;
            local.push_back(i);
            return true;
        });
    }

    pay_for_retries(context, round);
    if (!round.retry_at || *round.retry_at <= context.now) {
        std::vector<std::uint32_t> cover = open;
        for (std::uint32_t copy = 0; copy < round.copies && !cover.empty(); ++copy) {
            std::vector<std::uint32_t> left = cover;
            plan_cover(context, round, left, copy > 0);
            std::erase_if(cover, [&](std::uint32_t i) {
                return std::binary_search(left.begin(), left.end(), i);
            });
            if (copy == 0) open = left;
        }
    }

    // Without a free worker: is there one to wait for?
    if (options.local_fallback) keep_what_may_wait(context, round, open, local);
    if (!local.empty()) compute_locally(context, round, std::move(local));
    if (!probing.empty() && !all_silent) send_probes(context, round);
    wait_for_workers(context, round, open);
}

// Half-open: each worker whose ejection is over gets a copy of something that others compute. It
// serves again when it has answered, and is ejected for longer when it has not in time.
void SwarmState::send_probes(EventContext& context, Round& round) {
    constexpr Duration probe_within = 5s;
    const std::vector<WorkerId> ids = probing;
    for (const WorkerId id : ids) {
        Worker* worker = pool.find(id);
        if (worker == nullptr || worker->health.state() != Health::probing) {
            std::erase(probing, id);
        } else if (!worker->probed_at) {
            if (eligible(*worker, context.now) && send_probe(context, round, *worker))
                worker->probed_at = context.now;
        } else if (context.now - *worker->probed_at >= probe_within) {
            add_failure(context, *worker, "no answer to a probe");
        }
    }
}

bool SwarmState::send_probe(EventContext& context, Round& round, Worker& worker) {
    std::vector<std::uint32_t> slices;
    for (const AttemptId id : round.attempts) {
        slices.clear();
        std::uint32_t num_pairs = 0;
        for (const std::uint32_t i : find_attempt(id)->slices) {
            const CallSlice& slice = round.slices[i];
            if (slice.done || slice.latest_attempt() != id || slice.was_tried(worker.id) ||
                !worker.has(slice.unit, Worker::ready) || !worker.accepts(slice.dtype) ||
                num_pairs + slice.num_pairs() > worker.pairs_max ||
                (!slices.empty() &&
                 (worker.published_peer || round.slices[slices.front()].block != slice.block ||
                  round.slices[slices.front()].dtype != slice.dtype)))
                continue;
            slices.push_back(i);
            num_pairs += slice.num_pairs();
        }
        if (slices.empty()) continue;

        std::sort(slices.begin(), slices.end());
        send_attempt(context, round, worker, slices, true);
        find_attempt(round.attempts.back())->probe = true;
        return true;
    }
    return false;
}

// A storm of errors is not answered with a storm of questions: what failed is asked again at once
// while the budget has room, and later where it has not.
void SwarmState::pay_for_retries(EventContext& context, Round& round) {
    constexpr Duration later = 100ms;
    if (round.num_unpaid == 0 || (round.retry_at && *round.retry_at > context.now)) return;
    if (policy.affords(context.now)) {
        policy.pay(std::exchange(round.num_unpaid, 0));
    } else {
        round.retry_at = context.now + later;
        context.set_timer(*round.retry_at, TimerKind::round, round.id);
    }
}

void SwarmState::wait_for_workers(EventContext& context, Round& round,
                                  std::vector<std::uint32_t>& open) {
    if (open.empty()) {
        if (round.waiting) std::erase(waiting, round.id);
        round.waiting = false;
        round.give_up_at.reset();
        return;
    }

    if (!round.waiting) {
        if (waiting.size() >= options.rounds_waiting_max) {
            fail_round(
                context, round,
                {ErrorCode::overloaded, text(waiting.size(), " rounds wait for a worker already")});
            return;
        }
        waiting.push_back(round.id);
        round.waiting = true;
    }

    if (options.local_fallback) return;

    if (fail_what_nobody_takes(context, round, open) ||
        fail_what_nobody_holds(context, round, open))
        return;

    forgive(context, round, open);
}

// A slice that became too large for all who hold it is cut finer by a new round.
bool SwarmState::fail_what_nobody_takes(EventContext& context, Round& round,
                                        std::span<const std::uint32_t> open) {
    for (const std::uint32_t i : open) {
        const CallSlice& slice = round.slices[i];
        if (slice.num_pairs() <= WorkerPool::slice_pairs_min ||
            directory.holders(slice.unit).empty() || has_taker(slice) || !slice.live.empty())
            continue;

        fail_round(context, round,
                   {ErrorCode::num_tokens_range,
                    text("nobody takes ", slice.num_pairs(), " pairs of expert ", slice.expert,
                         " of layer ", round.layer, " at a time")});
        return true;
    }
    return false;
}

// Those who load a unit are worth the round's deadline; one that nobody even loads is not.
bool SwarmState::fail_what_nobody_holds(EventContext& context, Round& round,
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
                                holder_wait_of(slice.unit, *slice.unheld_since);
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

// Those that failed get another chance, after a breath that is longer each time. So do those who
// may answer still, later: a question or an answer may have been lost.
void SwarmState::forgive(EventContext& context, Round& round, std::span<const std::uint32_t> open) {
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
            if (at > TimePoint{}) make_room(context, *pool.find(worker));
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

// Three times what it had, at most two seconds more, and twice as long with every try that nobody
// answered: what takes its time is not to be asked for again and again. A few quick bad answers are
// no reason to leave what was lost until the round's deadline.
TimePoint SwarmState::overdue_retry_at(const CallSlice& slice, WorkerId worker) {
    constexpr Duration more_max = 2s;
    constexpr std::uint32_t doublings_max = 3;
    TimePoint at{};
    for (const AttemptId id : slice.live) {
        const Attempt& attempt = *find_attempt(id);
        if (attempt.worker != worker) continue;
        if (attempt.check_id != 0) return TimePoint::max();  // it has answered

        const Duration patience = attempt.timeout + std::min(2 * attempt.timeout, more_max);
        const std::uint32_t silent = std::max(slice.dispatches - slice.answered, 1u),
                            doublings = std::min(silent - 1, doublings_max);
        at = std::max(at, attempt.sent_at + patience * (1 << doublings));
    }
    return at;
}

// Whose every place is taken by something overdue is asked again in place of the oldest.
void SwarmState::make_room(EventContext& context, Worker& worker) {
    if (worker.ids.num_live() < worker.queue_depth) return;
    const auto& live = worker.ids.live();
    if (std::any_of(live.begin(), live.end(),
                    [&](const auto& one) { return !find_attempt(one.attempt)->late; }))
        return;
    cancel_attempt(context, *find_attempt(live.front().attempt));
}

bool SwarmState::can_take(const Worker& worker, const CallSlice& slice) const {
    return slice.num_pairs() <= worker.pairs_max && worker.accepts(slice.dtype) &&
           !slice.was_tried(worker.id) && (worker.health.serves() || in_need(slice.unit));
}

// Its number in the router; nullopt: it may not be asked now.
std::optional<std::uint32_t> SwarmState::route_of(Worker& worker, Dtype dtype, bool idle_only,
                                                  TimePoint now) {
    if (worker.mark == mark) return worker.route;
    if (!eligible(worker, now) || !worker.accepts(dtype)) return std::nullopt;
    if (idle_only && worker.ids.num_live() > 0) return std::nullopt;

    worker.mark = mark;
    worker.decay_work(now);
    worker.route = router.add_worker(
        {.id = worker.id,
         .num_live = static_cast<std::uint32_t>(worker.ids.num_live()),
         .work = worker.work,
         .stalls = worker.stalls_until > now || !worker.is_preferred_in(mark)});
    routed.push_back(&worker);
    loads.emplace_back();
    return worker.route;
}

// Leaves out takers without a record where one with a record could do it.
void SwarmState::prefer_proven() {
    const auto is_proven = [&](std::uint32_t number) { return routed[number]->is_proven; };
    if (std::any_of(takers.begin(), takers.end(), is_proven))
        std::erase_if(takers, [&](std::uint32_t number) { return !is_proven(number); });
}

// Leaves out takers that would have to load it first where one has it in memory. Where none has,
// its load is part of what they are predicted to need.
void SwarmState::prefer_resident(std::uint32_t unit, TimePoint now) {
    const auto load_of = [&](std::uint32_t number) { return routed[number]->load_of(unit); };
    const bool lies_ready = std::ranges::any_of(takers, [&](std::uint32_t number) {
        return load_of(number) == Duration{} && routed[number]->stalls_until <= now;
    });
    if (lies_ready)
        std::erase_if(takers, [&](std::uint32_t number) { return load_of(number) > Duration{}; });
    for (const std::uint32_t number : takers)
        loads[number] = std::max(loads[number], load_of(number));
}

void SwarmState::plan_cover(EventContext& context, Round& round, std::vector<std::uint32_t>& open,
                            bool hedge) {
    ++mark;
    router.begin();
    routed.clear();
    loads.clear();
    const bool idle_only = hedge && round.copies == 1,
               room_for_new = !options.checks.on || newcomers.has_room();
    for (const std::uint32_t i : open) {
        const CallSlice& slice = round.slices[i];
        takers.clear();
        for (UnitHolder* holder : directory.ready(slice.unit)) {
            Worker& worker = worker_of(holder);
            const auto route = route_of(worker, slice.dtype, idle_only, context.now);
            if (route && can_take(worker, slice)) takers.push_back(*route);
        }
        if (!room_for_new) prefer_proven();
        if (num_on_demand > 0) prefer_resident(slice.unit, context.now);
        router.add_slice(i, slice.num_pairs(), takers);
    }
    if (routed.empty()) return;

    const std::uint32_t pairs_each = router.pairs_each();
    for (std::uint32_t number = 0; number < routed.size(); ++number) {
        const Duration pace = routed[number]->predicted(pairs_each, latency, context.now) +
                              loads[number];
        router.set_pace(number, std::max(1e-3, to_ms(pace)));
    }

    const std::span<const RouteGroup> groups = router.cover();
    open.clear();
    router.append_left(open);
    for (const RouteGroup& group : groups)
        send_group(context, round, *routed[group.worker], group.slices, hedge, open);
    std::sort(open.begin(), open.end());
}

// Cuts a group by the wire's limits into frames; what the
// worker's queue has no room for goes back to `unsent`.
void SwarmState::send_group(EventContext& context, Round& round, Worker& worker,
                            std::vector<std::uint32_t> slices, bool hedge,
                            std::vector<std::uint32_t>& unsent) {
    std::sort(slices.begin(), slices.end());  // by block, then expert
    const std::uint32_t pairs_max = std::min(options.limits.num_pairs_max, worker.pairs_max);

    const auto belong_together = [&](const CallSlice& a, const CallSlice& b) {
        return a.block == b.block && a.dtype == b.dtype &&
               (round.unsummed || a.latest_attempt() == b.latest_attempt());
    };

    std::size_t begin = 0;
    while (begin < slices.size() && worker.ids.num_live() < worker.queue_depth) {
        std::size_t end = begin;
        std::uint32_t num_pairs = 0;
        const CallSlice& first = round.slices[slices[begin]];

        while (end < slices.size()) {
            const CallSlice& slice = round.slices[slices[end]];
            if (end > begin && (worker.published_peer || !belong_together(first, slice) ||
                                num_pairs + slice.num_pairs() > pairs_max))
                break;
            num_pairs += slice.num_pairs();
            ++end;
        }

        send_attempt(context, round, worker, std::span(slices).subspan(begin, end - begin), hedge);
        begin = end;
    }

    unsent.insert(unsent.end(), slices.begin() + static_cast<std::ptrdiff_t>(begin), slices.end());
}

void SwarmState::finish_round(EventContext& context, Round& round) {
    RoundDone done{.round = round.id, .answer = ExpertAnswer{}};
    done.sum = round.finish(*done.answer);
    done.sum.give_back_to(answer_memory);
    done.answer->waited = context.now - round.started;
    for (const RowProvenance& row : done.answer->rows) {
        counts.pairs_verified += row.pairs_verified;
        counts.pairs_proven += row.pairs_proven;
        counts.pairs_unchecked += row.pairs_remote - row.pairs_verified - row.pairs_proven;
        counts.pairs_late += row.pairs_late;
    }

    // A call counts as local when any part of it was; only rounds
    // beyond the wire's row limit have calls in several parts.
    std::vector<std::uint8_t> from(options.limits.num_experts);
    for (const CallSlice& slice : round.slices)
        if (slice.done)
            from[slice.expert] |= round.answers[static_cast<std::size_t>(slice.answer)].worker == 0
                                      ? 2
                                      : 1;
    for (const std::uint8_t origin : from) {
        if (origin == 1) ++counts.calls_remote;
        if (origin >= 2) ++counts.calls_local;
    }

    load_window.on_round_end(static_cast<std::uint32_t>(moe_index[round.layer]), context.now);
    close_round(context, round);
    context.out.push_back(std::move(done));
}

void SwarmState::fail_round(EventContext& context, Round& round, Error error) {
    ++counts.rounds_failed;
    RoundDone done{.round = round.id, .answer = std::move(error)};

    close_round(context, round);
    context.out.push_back(std::move(done));
}

void SwarmState::close_round(EventContext& context, Round& round) {
    const std::vector<AttemptId> live = round.attempts;
    for (const AttemptId id : live) cancel_attempt(context, *find_attempt(id));

    if (round.waiting) std::erase(waiting, round.id);
    round.waiting = false;

    for (RoundAnswer& answer : round.answers) answer_memory->give(std::move(answer.y));
    round.close();

    auto node = rounds.extract(round.id);
    if (round_reserve.size() < rounds_kept_max) round_reserve.push_back(std::move(node.mapped()));
}

void SwarmState::on_round_time(EventContext& context, Round& round) {
    if (context.now < round.deadline) {
        dispatch(context, round);  // its wait or its pause is over
        return;
    }

    std::vector<AttemptId> remote;
    for (const AttemptId id : round.attempts)
        if (find_attempt(id)->worker != 0) remote.push_back(id);

    if (!options.local_fallback) {
        // What the local backend has begun before it was switched off may still end well.
        const bool open = std::any_of(round.slices.begin(), round.slices.end(),
                                      [](const CallSlice& slice) { return slice.is_open(); });
        if (open || !remote.empty())
            fail_round(context, round,
                       {ErrorCode::unavailable,
                        text("layer ", round.layer, ": no worker answered ", round.slices_left,
                             " of ", round.slices.size(), " expert calls within ",
                             options.round_deadline / 1ms, " ms, and local fallback is off")});
        return;
    }

    for (const AttemptId id : remote) cancel_attempt(context, *find_attempt(id));

    std::vector<std::uint32_t> open;
    for (std::uint32_t i = 0; i < round.slices.size(); ++i)
        if (round.slices[i].is_open()) open.push_back(i);

    if (round.waiting) std::erase(waiting, round.id);
    round.waiting = false;

    if (!open.empty()) compute_locally(context, round, std::move(open));
}

void SwarmState::serve_waiting(EventContext& context) {
    if (!std::exchange(capacity_freed, false) || waiting.empty()) return;

    const std::vector<RoundId> order = waiting;
    for (const RoundId id : order)
        if (Round* round = find_round(id)) dispatch(context, *round);
}

}  // namespace moex
