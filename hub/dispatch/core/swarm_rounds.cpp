// The start of a round, and its possible ends: it finishes, fails or is closed.
#include <algorithm>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {

RoundId SwarmRounds::open_round(EventContext& context, const ExpertBatch& batch, RoundRows rows) {
    const std::int32_t moe_index = swarm_.placement.moe_index_of(batch.layer);
    MOEX_CHECK(moe_index >= 0, text("layer ", batch.layer, " has no experts"));
    MOEX_CHECK(batch.hidden_size == options_.limits.hidden_size && batch.num_tokens <= 65535,
               text("a batch of [", batch.num_tokens, ", ", batch.hidden_size, "] for hidden_size ",
                    options_.limits.hidden_size));
    MOEX_CHECK(batch.expert_ids.size() >= std::size_t{batch.num_tokens} * batch.top_k &&
                   batch.expert_weights.size() >= std::size_t{batch.num_tokens} * batch.top_k,
               "the batch's spans are shorter than its sizes say");

    Round& round = in_flight_.new_round();
    const RoundId id = round.id;
    round.started = context.now;
    round.deadline = context.now + options_.round_deadline;
    ++counts_.rounds;
    swarm_.times.last_moe_index = moe_index;
    swarm_.times.load_window.on_round_begin(static_cast<std::uint32_t>(moe_index), batch.num_tokens,
                                            context.now);
    swarm_.placement.needs_layer(batch.layer);

    const RoundOptions options{.limits = options_.limits,
                               .rounding = options_.rounding,
                               .unit_base = swarm_.placement.unit_of(batch.layer, 0),
                               .copies = swarm_.attempts.attempts_at_once()};
    const Status opened = round.open(batch, std::move(rows), options,
                                     swarm_.cover.slice_pairs_max(batch.layer));
    if (!opened.ok()) {
        round.attempts.clear();
        fail_round(context, round, opened.error());
        return id;
    }

    std::vector<bool> called(options_.limits.num_experts);
    for (const CallSlice& slice : round.slices) {
        if (!called[slice.expert]) ++counts_.calls;
        called[slice.expert] = true;
    }

    context.set_timer(round.deadline, TimerKind::round, id);
    // The round may end at each of the times in `patience`. on_round_time() then checks whether it
    // does.
    for (TimePoint last{}; const RowPatience& one : round.patience)
        if (const TimePoint at = context.now + one.wait;
            at != std::exchange(last, at) && at < round.deadline)
            context.set_timer(at, TimerKind::round, id);
    swarm_.placement.count_requested(context, batch);
    dispatch(context, round);
    return id;
}

void SwarmRounds::finish_round(EventContext& context, Round& round) {
    RoundDone done{.round = round.id, .answer = ExpertAnswer{}};
    done.sum = round.finish(*done.answer);
    done.sum.give_back_to(swarm_.answer_memory);
    done.answer->waited = context.now - round.started;
    for (const RowProvenance& row : done.answer->rows) {
        counts_.pairs_verified += row.pairs_verified;
        counts_.pairs_proven += row.pairs_proven;
        counts_.pairs_unchecked += row.pairs_remote - row.pairs_verified - row.pairs_proven;
        counts_.pairs_late += row.pairs_late;
    }

    // An expert call counts as local if any part of it was computed locally. Only rounds with more
    // rows than the wire's limit have calls of several parts.
    std::vector<std::uint8_t> from(options_.limits.num_experts);
    for (const CallSlice& slice : round.slices)
        if (slice.done)
            from[slice.expert] |= round.answers[static_cast<std::size_t>(slice.answer)].worker == 0
                                      ? 2
                                      : 1;
    for (const std::uint8_t origin : from) {
        if (origin == 1) ++counts_.calls_remote;
        if (origin >= 2) ++counts_.calls_local;
    }

    swarm_.times.load_window.on_round_end(
        static_cast<std::uint32_t>(swarm_.placement.moe_index_of(round.layer)), context.now);
    close_round(context, round);
    context.out.push_back(std::move(done));
}

void SwarmRounds::fail_round(EventContext& context, Round& round, Error error) {
    ++counts_.rounds_failed;
    RoundDone done{.round = round.id, .answer = std::move(error)};

    close_round(context, round);
    context.out.push_back(std::move(done));
}

void SwarmRounds::close_round(EventContext& context, Round& round) {
    const std::vector<AttemptId> live = round.attempts;
    for (const AttemptId id : live)
        swarm_.attempts.cancel_attempt(context, *in_flight_.find_attempt(id));

    in_flight_.stop_waiting(round);

    for (RoundAnswer& answer : round.answers) swarm_.answer_memory->give(std::move(answer.y));
    round.close();

    in_flight_.erase_round(round.id);
}

void SwarmRounds::on_round_time(EventContext& context, Round& round) {
    if (context.now < round.deadline) {
        // the round's wait for a worker, or its pause before a retry, is over
        dispatch(context, round);
        return;
    }

    std::vector<AttemptId> remote;
    for (const AttemptId id : round.attempts)
        if (in_flight_.find_attempt(id)->worker != 0) remote.push_back(id);

    if (!options_.local_fallback) {
        // The local backend may still finish work that it began before the operator switched it
        // off.
        const bool open = std::any_of(round.slices.begin(), round.slices.end(),
                                      [](const CallSlice& slice) { return slice.is_open(); });
        if (open || !remote.empty())
            fail_round(context, round,
                       {ErrorCode::unavailable,
                        text("layer ", round.layer, ": no worker answered ", round.slices_left,
                             " of ", round.slices.size(), " expert calls within ",
                             options_.round_deadline / 1ms, " ms, and local fallback is off")});
        return;
    }

    for (const AttemptId id : remote)
        swarm_.attempts.cancel_attempt(context, *in_flight_.find_attempt(id));

    std::vector<std::uint32_t> open;
    for (std::uint32_t i = 0; i < round.slices.size(); ++i)
        if (round.slices[i].is_open()) open.push_back(i);

    in_flight_.stop_waiting(round);

    if (!open.empty()) swarm_.attempts.compute_locally(context, round, std::move(open));
}

bool SwarmRounds::retry_in_bf16(Round& round, const Attempt& attempt) const {
    // with deterministic rounding x is always rounded to the wire's dtype
    if (attempt.shape.dtype != Dtype::f16 || options_.rounding.deterministic) return false;

    const bool carried =
        options_.local_fallback ||
        std::all_of(round.slices.begin(), round.slices.end(), [&](const CallSlice& slice) {
            return slice.done ||
                   std::ranges::any_of(swarm_.placement.directory().ready(slice.unit),
                                       [](const UnitHolder* holder) {
                                           return worker_of(holder).accepts(Dtype::bf16);
                                       });
        });
    if (!carried) return false;

    for (CallSlice& slice : round.slices)
        if (!slice.done) slice.dtype = Dtype::bf16;
    return true;
}

}  // namespace moex
