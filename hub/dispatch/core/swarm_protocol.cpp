// Frames in: what each means in the state its connection
// is in, and how a connection ends that breaks the rules.
#include <algorithm>
#include <charconv>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {
constexpr Duration busy_max = 5s;  // a worker that wants more should leave

// How many pairs a worker takes that refused `num_pairs`: what it says, else half.
std::uint32_t pairs_taken(const ErrorMessage& error, std::uint32_t num_pairs) {
    std::uint32_t wanted = 0;
    const char* const end = error.wanted.data() + error.wanted.size();
    const auto [rest, failed] = std::from_chars(error.wanted.data(), end, wanted);
    return failed == std::errc() && rest == end && wanted < num_pairs ? wanted : num_pairs / 2;
}

}  // namespace

bool SwarmState::retry_in_bf16(Round& round, const Attempt& attempt) const {
    // deterministic: rounded to the wire's dtype, whoever answers
    if (attempt.shape.dtype != Dtype::f16 || options.rounding.deterministic) return false;

    const bool carried =
        options.local_fallback ||
        std::all_of(round.slices.begin(), round.slices.end(), [&](const CallSlice& slice) {
            return slice.done ||
                   std::ranges::any_of(directory.ready(slice.unit), [](const UnitHolder* holder) {
                       return worker_of(holder).accepts(Dtype::bf16);
                   });
        });
    if (!carried) return false;

    for (CallSlice& slice : round.slices)
        if (!slice.done) slice.dtype = Dtype::bf16;
    return true;
}

void SwarmState::refuse(EventContext& context, Worker& worker, const Error& error, CloseCode code) {
    if (!worker.published_peer)
        context.send(worker, encode_error({.code = error_code_name(error.code),
                                           .found = error.message,
                                           .fatal = true}));
    remove_worker(context, worker.id, WorkerEvent::Kind::removed, error.message, code);
}

void SwarmState::on_frame(EventContext& context, Worker& worker, ByteView frame) {
    const Result<FrameHeader> header = decode_frame_header(frame);
    if (!header.ok()) {
        ++counts.bad_frames;
        refuse(context, worker, header.error(), close_code_for(header.error().code));
        return;
    }

    if (!worker.welcomed()) {
        on_first_frame(context, worker, *header, frame);
        return;
    }

    on_sign_of_life(worker, context.now);

    switch (header->type) {
        case FrameType::heartbeat:
            if (const Status empty = decode_heartbeat(frame); !empty.ok()) {
                ++counts.bad_frames;
                refuse(context, worker, empty.error(), close_code_for(empty.error().code));
                return;
            }
            on_heartbeat(context, worker, *header);
            return;
        case FrameType::result:
        case FrameType::group_result:
            on_answer(context, worker, *reader_of(worker).read(frame));
            return;
        case FrameType::busy: on_busy(context, worker, *header, frame); return;
        case FrameType::error: on_error(context, worker, frame); return;
        case FrameType::ready: {
            const Result<Ready> ready = decode_ready(frame, options.limits);
            if (!ready.ok()) {
                ++counts.bad_frames;
                refuse(context, worker, ready.error(), close_code_for(ready.error().code));
                return;
            }

            // The first one of a worker that promised it says what it need not download, and is
            // no promise to answer, should it come late.
            if (std::exchange(worker.reports_held, false))
                return place(context, worker, units_of(ready->units));
            take_tiers(worker, *ready);
            mark_ready(context, worker, units_of(ready->units));
            return;
        }
        case FrameType::drain: on_worker_drain(context, worker, frame); return;
        case FrameType::budget:
            if (worker.published_peer) break;
            on_budget(context, worker, frame);
            return;
        case FrameType::power:
            if (worker.published_peer) break;
            on_power(context, worker, frame);
            return;
        case FrameType::slots:
            if (worker.published_peer) break;
            on_slots(context, worker, frame);
            return;
        default: break;
    }

    ++counts.bad_frames;
    refuse(context, worker,
           {ErrorCode::unknown_type,
            text(frame_type_name(header->type), " is not a worker's to send")},
           CloseCode::protocol_error);
}

std::uint32_t SwarmState::capacity_of(const Worker& worker) const {
    if (drained.contains(ring_key_of(worker))) return 0;
    if (options.expert_blob_bytes == 0) return directory.num_units();
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(
        directory.num_units(), worker.device.budget_bytes / options.expert_blob_bytes));
}

// Another memory limit on a connection that serves. What the worker let go of is asked of it no
// more from here on; the placement keeps the rest where it is.
void SwarmState::on_budget(EventContext& context, Worker& worker, ByteView frame) {
    const Result<Budget> budget = decode_budget(frame, options.limits);
    if (!budget.ok()) {
        ++counts.bad_frames;
        refuse(context, worker, budget.error(), close_code_for(budget.error().code));
        return;
    }
    if (worker.leaving()) return;
    worker.device.budget_bytes = budget->budget_bytes;
    // its buffers for calls have another size as well: it says so again if a group is too large
    set_pairs_max(worker, std::numeric_limits<std::uint32_t>::max());

    directory.on_budget(worker, capacity_of(worker), units_of(budget->dropped), context.now);
    carry_out_orders(context);
}

void SwarmState::on_power(EventContext& context, Worker& worker, ByteView frame) {
    const Result<std::uint32_t> percent = decode_power(frame);
    if (!percent.ok()) {
        ++counts.bad_frames;
        refuse(context, worker, percent.error(), close_code_for(percent.error().code));
        return;
    }
    worker.power = *percent / 100.0;
}

// Where it lies as it comes: what else the hub knows of a worker's memory is a guess.
void SwarmState::take_tiers(Worker& worker, const Ready& ready) {
    for (std::size_t i = 0; i < ready.tiers.size(); ++i) {
        if (!is_unit(ready.units[i])) continue;
        const std::uint32_t unit = unit_of(ready.units[i].layer, ready.units[i].expert);
        worker.tiers[unit] = ready.tiers[i];
        if (ready.tiers[i] == UnitTier::slot) worker.slot_guess.use(unit);
    }
}

void SwarmState::on_slots(EventContext& context, Worker& worker, ByteView frame) {
    const Result<SlotFigures> told = decode_slots(frame);
    const auto shrank = [&] {
        return std::ranges::any_of(
            slot_counters, [&](auto counter) { return (*told).*counter < worker.slots.*counter; });
    };
    if (!told.ok() || shrank()) {
        ++counts.bad_frames;
        const Error error = told.ok() ? Error{ErrorCode::bad_field, "SLOTS: a counter shrank"}
                                      : told.error();
        refuse(context, worker, error, close_code_for(error.code));
        return;
    }

    for (const auto counter : slot_counters)
        counts.slots.*counter += (*told).*counter - worker.slots.*counter;
    worker.take_slots(*told);
}

void SwarmState::on_heartbeat(EventContext& context, Worker& worker, const FrameHeader& header) {
    const auto echoed = std::find_if(
        worker.heartbeats.begin(), worker.heartbeats.end(),
        [&](const auto& beat) { return beat.id == header.sequence_id; });
    if (echoed == worker.heartbeats.end()) return;  // not an echo

    const TimePoint sent_at = echoed->sent_at;
    std::vector<std::uint32_t> loaded;
    for (auto beat = worker.heartbeats.begin(); beat <= echoed; ++beat)
        loaded.insert(loaded.end(), beat->units.begin(), beat->units.end());
    // it works in order: an echo answers for the earlier ones

    worker.heartbeats.erase(worker.heartbeats.begin(), echoed + 1);
    worker.heartbeats_missed = 0;

    if (worker.health.state() == Health::silent && sent_at >= worker.health.since()) {
        worker.health.on(HealthEvent::echo, context.now);
        context.event(worker, WorkerEvent::Kind::healthy, "its heartbeat is back");
    }

    mark_ready(context, worker, loaded);
    capacity_freed = true;  // its silence is over
}

AnswerReader SwarmState::reader_of(const Worker& worker) const {
    return {options.limits, answer_memory, worker.ids.asked()};
}

void SwarmState::on_answer(EventContext& context, Worker& worker, WorkerAnswer answer) {
    const AttemptId* live = worker.ids.find_live(answer.sequence_id);
    if (live == nullptr) {
        answer_memory->give(std::move(answer.y));
        return on_unawaited_result(context, worker, answer.sequence_id);
    }
    if (!answer.asked_for) return on_unasked_answer(context, worker, answer.sequence_id);

    Attempt& attempt = *find_attempt(*live);
    Round& round = *find_round(attempt.round);
    const bool of_its_type = worker.published_peer == (answer.type == FrameType::result),
               is_broken = of_its_type && answer.broken;

    if (is_broken && answer.broken->code != ErrorCode::non_finite) {
        // Bytes that are no answer at all: the connection
        // is of no use. Its attempts are given to others.
        ++counts.bad_frames;
        refuse(context, worker, *answer.broken, close_code_for(answer.broken->code));
        return;
    }

    if (is_broken && worker.published_peer) {
        // It has no ERROR to say so with: an infinity is how
        // f16 overflows there. No lie, but no answer either.
        ++worker.errors;
        worker.ids.release(attempt.sequence_id);
        const bool again = retry_in_bf16(round, attempt);
        drop_attempt(context, attempt, again ? Failure::busy : Failure::error);
        dispatch(context, round);
        return;
    }

    if (const std::string fault = fault_of(worker, attempt, round, answer); !fault.empty())
        return on_wrong_answer(context, worker, attempt, fault);

    worker.ids.release(attempt.sequence_id);
    learn_latency(context.now, attempt, worker);
    group_latency.record(context.now - attempt.sent_at);
    if (answer.times) {
        for (RoundSplit* split : {&worker.split, &counts.split})
            split->record(context.now - attempt.sent_at, *answer.times);
        load_window.on_group(context.now - attempt.sent_at, answer.times->worker_us);
    }
    on_sign_of_work(context, worker, attempt.sent_at);
    ++worker.groups_answered;
    worker.pairs_answered += attempt.num_pairs;
    ++counts.groups_answered;
    capacity_freed = true;

    receive_answer(context, worker, attempt, std::move(answer),
                   worker.published_peer || round.unsummed);
}

// Of an attempt that was cancelled, or of none at all.
void SwarmState::on_unawaited_result(EventContext& context, Worker& worker,
                                     std::uint32_t sequence_id) {
    if (const SequenceIds::Cancelled* cancelled = worker.ids.find_cancelled(sequence_id)) {
        // late, but it tells how long such work takes
        if (worker.load == Duration{})  // else nobody knows what of it was a load
            worker.record_latency(context.now - cancelled->sent_at, cancelled->num_pairs,
                                  context.now);
        on_sign_of_work(context, worker, cancelled->sent_at);
        worker.ids.release_cancelled(sequence_id);
    } else if (!worker.ids.was_issued(sequence_id)) {
        return on_unasked_answer(context, worker, sequence_id);
    }

    ++worker.late;
    ++counts.late;
    capacity_freed = true;
}

// Its id was not given yet when it was read: who guesses what will be asked has not computed it.
void SwarmState::on_unasked_answer(EventContext& context, Worker& worker,
                                   std::uint32_t sequence_id) {
    ++counts.bad_frames;
    refuse(context, worker,
           {ErrorCode::bad_field, text("an answer to ", sequence_id, ", which was never asked")},
           CloseCode::protocol_error);
}

std::string SwarmState::fault_of(const Worker& worker, const Attempt& attempt, const Round& round,
                                 const WorkerAnswer& answer) const {
    constexpr const char* another_shape = "the answer's shape is not the question's";
    if (worker.published_peer != (answer.type == FrameType::result))
        return "the answer is of another type than the question";
    if (answer.broken) return answer.broken->message;

    const GroupShape& asked = attempt.shape;
    if (worker.published_peer) {
        if (answer.shape.layer != asked.layer || answer.shape.dtype != asked.dtype ||
            answer.shape.num_tokens != attempt.num_pairs ||
            answer.expert != round.slices[attempt.slices.front()].expert)
            return another_shape;
    } else if (!(answer.shape == asked)) {
        return another_shape;
    }

    if (!within_norm_bound(round, attempt, answer.square_sums,
                           worker.published_peer || round.unsummed, options.norm_bound))
        return "the answer is beyond the norm bound";
    return {};
}

// A lie that need not be computed again to be seen as one.
void SwarmState::on_wrong_answer(EventContext& context, Worker& worker, Attempt& attempt,
                                 const std::string& wrong) {
    const RoundId round_id = attempt.round;
    worker.ids.release(attempt.sequence_id);
    drop_attempt(context, attempt, Failure::bad_answer);

    const bool banned = options.checks.on &&
                        trust.on_verdict(worker.trust_key, worker.trust_address, Verdict::lie, {},
                                         context.now);
    worker.is_proven = trust.trust(worker.trust_key, context.now) == Trust::proven;
    on_wrong_rows(context, worker.id, wrong, banned);
    if (!banned && worker.bad_answers >= options.bad_answers_max)
        refuse(context, worker,
               {ErrorCode::bad_field, text(worker.bad_answers, " bad answers, the last: ", wrong)},
               CloseCode::policy);
    if (Round* open = find_round(round_id)) dispatch(context, *open);
}

void SwarmState::on_busy(EventContext& context, Worker& worker, const FrameHeader& header,
                         ByteView frame) {
    const Result<std::uint32_t> retry_ms = decode_busy(frame);
    if (!retry_ms.ok()) {
        ++counts.bad_frames;
        refuse(context, worker, retry_ms.error(), close_code_for(retry_ms.error().code));
        return;
    }

    worker.busy_until = context.now +
                        std::clamp<Duration>(std::chrono::milliseconds(*retry_ms), 1ms, busy_max);
    context.set_timer(worker.busy_until, TimerKind::busy, worker.id);
    ++worker.busy;
    if (++worker.busy_in_row > options.busy_in_row_max)
        add_failure(context, worker, "BUSY in a row");

    const AttemptId* live = worker.ids.find_live(header.sequence_id);
    if (live == nullptr) {
        worker.ids.release_cancelled(header.sequence_id);
        return;
    }

    Attempt& attempt = *find_attempt(*live);
    Round& round = *find_round(attempt.round);

    worker.ids.release(attempt.sequence_id);
    drop_attempt(context, attempt, Failure::busy);
    dispatch(context, round);
}

void SwarmState::on_error(EventContext& context, Worker& worker, ByteView frame) {
    const Result<ErrorMessage> error = decode_error(frame);
    if (!error.ok()) {
        ++counts.bad_frames;
        refuse(context, worker, error.error(), close_code_for(error.error().code));
        return;
    }

    ++worker.errors;
    if (error->fatal) {
        remove_worker(context, worker.id, WorkerEvent::Kind::left,
                      text("its error: ", error->code, ' ', error->found), CloseCode::going_away);
        return;
    }

    const AttemptId* live = worker.ids.find_live(error->sequence_id);
    if (live == nullptr) {
        worker.ids.release_cancelled(error->sequence_id);
        if (error->code == error_code_name(ErrorCode::no_space) && !worker.leaving()) {
            directory.on_no_space(worker, context.now);
            carry_out_orders(context);
        }
        return;
    }

    Attempt& attempt = *find_attempt(*live);
    Round& round = *find_round(attempt.round);

    Failure failure = Failure::error;
    if (error->code == error_code_name(ErrorCode::unknown_expert) ||
        error->code == error_code_name(ErrorCode::not_found)) {
        on_missing_units(context, worker, attempt, round);
    } else if (error->code == error_code_name(ErrorCode::num_tokens_range)) {
        // Its memory is less than the limits allow. Smaller groups
        // may go there; what cannot be split goes elsewhere.
        const std::uint32_t taken = pairs_taken(*error, attempt.num_pairs);
        if (taken > 0) {
            set_pairs_max(worker, std::min(worker.pairs_max, taken));
            failure = Failure::busy;
        }
    } else if (error->code == error_code_name(ErrorCode::non_finite) &&
               retry_in_bf16(round, attempt)) {
        failure = Failure::busy;
    }

    worker.ids.release(attempt.sequence_id);
    drop_attempt(context, attempt, failure);
    dispatch(context, round);
}

// It leaves: what it holds goes to others now; what it was asked
// it may answer. close_drained() closes the connection after that.
void SwarmState::on_worker_drain(EventContext& context, Worker& worker, ByteView frame) {
    const Result<std::uint32_t> deadline_ms = decode_drain(frame);
    if (!deadline_ms.ok()) {
        ++counts.bad_frames;
        refuse(context, worker, deadline_ms.error(), close_code_for(deadline_ms.error().code));
        return;
    }
    if (!worker.health.on(HealthEvent::drain, context.now)) return;

    leavers.push_back(worker.id);
    context.set_timer(context.now + std::chrono::milliseconds(*deadline_ms), TimerKind::drain,
                      worker.id);
    directory.leave(worker, false, context.now);
    if (!draining) directory.settle(context.now);
    carry_out_orders(context);
}

}  // namespace moex
