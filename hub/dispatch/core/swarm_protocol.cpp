// Handles frames that arrive from workers: the meaning of each frame in the present state of its
// connection, and the end of a connection that breaks the protocol.
#include <algorithm>
#include <charconv>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {
// longest time that BUSY may ask for; a worker that wants more should leave
constexpr Duration busy_max = 5s;

// Returns how many pairs per group the worker accepts after it refused `num_pairs` pairs: the
// number in its ERROR, otherwise half of `num_pairs`.
std::uint32_t pairs_taken(const ErrorMessage& error, std::uint32_t num_pairs) {
    std::uint32_t wanted = 0;
    const char* const end = error.wanted.data() + error.wanted.size();
    const auto [rest, failed] = std::from_chars(error.wanted.data(), end, wanted);
    return failed == std::errc() && rest == end && wanted < num_pairs ? wanted : num_pairs / 2;
}

}  // namespace

void SwarmFrames::count_frame(Worker& worker, std::uint64_t frame_bytes) {
    ++counts_.frames_received;
    counts_.bytes_received += frame_bytes;
    worker.bytes_received += frame_bytes;
}

void SwarmFrames::refuse_bad(EventContext& context, Worker& worker, const Error& error) {
    ++counts_.bad_frames;
    swarm_.sessions.refuse(context, worker, error, close_code_for(error.code));
}

void SwarmFrames::on_frame(EventContext& context, Worker& worker, ByteView frame) {
    const Result<FrameHeader> header = decode_frame_header(frame);
    if (!header.ok()) {
        refuse_bad(context, worker, header.error());
        return;
    }

    if (!worker.welcomed()) {
        swarm_.sessions.on_first_frame(context, worker, *header, frame);
        return;
    }

    swarm_.health.on_sign_of_life(worker, context.now);

    switch (header->type) {
        case FrameType::heartbeat:
            if (const Status empty = decode_heartbeat(frame); !empty.ok()) {
                refuse_bad(context, worker, empty.error());
                return;
            }
            swarm_.sessions.on_heartbeat(context, worker, *header);
            return;
        case FrameType::result:
        case FrameType::group_result:
            on_answer(context, worker, *reader_of(worker).read(frame));
            return;
        case FrameType::busy: on_busy(context, worker, *header, frame); return;
        case FrameType::error: on_error(context, worker, frame); return;
        case FrameType::ready: on_ready(context, worker, frame); return;
        case FrameType::drain: swarm_.sessions.on_worker_drain(context, worker, frame); return;
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
        case FrameType::span_ready:
        case FrameType::span_answer: {
            if (worker.published_peer || !options_.spans.on) break;
            const Status taken = header->type == FrameType::span_ready
                                     ? swarm_.spans.on_ready(context, worker, frame)
                                     : swarm_.spans.on_answer(context, worker, frame);
            if (!taken.ok()) refuse_bad(context, worker, taken.error());
            return;
        }
        default: break;
    }

    ++counts_.bad_frames;
    swarm_.sessions.refuse(context, worker,
                           {ErrorCode::unknown_type,
                            text(frame_type_name(header->type), " may not be sent by a worker")},
                           CloseCode::protocol_error);
}

void SwarmFrames::on_ready(EventContext& context, Worker& worker, ByteView frame) {
    const Result<Ready> ready = decode_ready(frame, options_.limits);
    if (!ready.ok()) {
        refuse_bad(context, worker, ready.error());
        return;
    }

    const std::vector<std::uint32_t> units = swarm_.placement.units_of(ready->units);
    // The first READY of a worker with the capability "held" lists the units that it need not
    // download. Such a READY does not promise that the worker will answer for these units, even if
    // it arrives late.
    if (std::exchange(worker.reports_held, false))
        return swarm_.placement.place(context, worker, units);
    take_tiers(worker, *ready);
    swarm_.placement.mark_ready(context, worker, units);
    swarm_.spans.consider(context, worker);
}

// Handles BUDGET: a worker in service has a new memory limit. Units that it dropped are no longer
// requested from it; the placement keeps its other units where they are.
void SwarmFrames::on_budget(EventContext& context, Worker& worker, ByteView frame) {
    const Result<Budget> budget = decode_budget(frame, options_.limits);
    if (!budget.ok()) {
        refuse_bad(context, worker, budget.error());
        return;
    }
    if (worker.leaving() || worker.hands_over) return;
    worker.device.budget_bytes = budget->budget_bytes;
    // The worker's buffers for groups have a new size as well, so the old limit on pairs is lifted.
    // The worker reports again if a group is too large.
    pool_.set_pairs_max(worker, std::numeric_limits<std::uint32_t>::max());

    swarm_.spans.on_budget(worker.id);
    swarm_.placement.on_capacity(context, worker, swarm_.placement.units_of(budget->dropped));
}

void SwarmFrames::on_power(EventContext& context, Worker& worker, ByteView frame) {
    const Result<std::uint32_t> percent = decode_power(frame);
    if (!percent.ok()) {
        refuse_bad(context, worker, percent.error());
        return;
    }
    worker.power = *percent / 100.0;
}

// Records where the worker reports to hold each unit (slot, memory or store). Everything else that
// the hub knows about a worker's memory is an estimate.
void SwarmFrames::take_tiers(Worker& worker, const Ready& ready) {
    for (std::size_t i = 0; i < ready.tiers.size(); ++i) {
        if (!swarm_.placement.is_unit(ready.units[i])) continue;
        const std::uint32_t unit = swarm_.placement.unit_of(ready.units[i].layer,
                                                            ready.units[i].expert);
        worker.tiers[unit] = ready.tiers[i];
        if (ready.tiers[i] == UnitTier::slot) worker.slot_guess.use(unit);
    }
}

void SwarmFrames::on_slots(EventContext& context, Worker& worker, ByteView frame) {
    const Result<SlotFigures> reported = decode_slots(frame);
    const auto shrank = [&] {
        return std::ranges::any_of(slot_counters, [&](auto counter) {
            return (*reported).*counter < worker.slots.*counter;
        });
    };
    if (!reported.ok() || shrank()) {
        ++counts_.bad_frames;
        const Error error = reported.ok() ? Error{ErrorCode::bad_field, "SLOTS: a counter shrank"}
                                          : reported.error();
        swarm_.sessions.refuse(context, worker, error, close_code_for(error.code));
        return;
    }

    for (const auto counter : slot_counters)
        counts_.slots.*counter += (*reported).*counter - worker.slots.*counter;
    worker.take_slots(*reported);
}

AnswerReader SwarmFrames::reader_of(const Worker& worker) const {
    return {options_.limits, swarm_.answer_memory, worker.ids.asked()};
}

void SwarmFrames::on_answer(EventContext& context, Worker& worker, WorkerAnswer answer) {
    const AttemptId* live = worker.ids.find_live(answer.sequence_id);
    if (live == nullptr) {
        swarm_.answer_memory->give(std::move(answer.y));
        return on_unawaited_result(context, worker, answer.sequence_id);
    }
    if (!answer.asked_for) return on_unasked_answer(context, worker, answer.sequence_id);

    Attempt& attempt = *in_flight_.find_attempt(*live);
    Round& round = *in_flight_.find_round(attempt.round);
    const bool of_its_type = worker.published_peer == (answer.type == FrameType::result),
               is_broken = of_its_type && answer.broken;

    if (is_broken && answer.broken->code != ErrorCode::non_finite) {
        // The bytes cannot be decoded as an answer, so the connection is closed. The worker's
        // attempts are sent to other workers.
        ++counts_.bad_frames;
        swarm_.sessions.refuse(context, worker, *answer.broken,
                               close_code_for(answer.broken->code));
        return;
    }

    if (is_broken && worker.published_peer) {
        // A published peer has no ERROR frame for an overflow of f16; it answers with an infinity
        // instead. The worker is honest, but the result cannot be used.
        ++worker.errors;
        worker.ids.release(attempt.sequence_id);
        const bool again = swarm_.rounds.retry_in_bf16(round, attempt);
        swarm_.attempts.drop_attempt(context, attempt,
                                     again ? AttemptFailure::busy : AttemptFailure::error);
        swarm_.rounds.dispatch(context, round);
        return;
    }

    if (const std::string fault = fault_of(worker, attempt, round, answer); !fault.empty())
        return swarm_.checks.on_wrong_answer(context, worker, attempt, fault);

    worker.ids.release(attempt.sequence_id);
    swarm_.attempts.learn_latency(context.now, attempt, worker);
    swarm_.reserve.on_answer(worker, attempt, answer.times, context.now);
    swarm_.times.group_latency.record(context.now - attempt.sent_at);
    if (answer.times) {
        for (RoundSplit* split : {&worker.split, &counts_.split})
            split->record(context.now - attempt.sent_at, *answer.times);
        swarm_.times.load_window.on_group(context.now - attempt.sent_at, answer.times->worker_us);
    }
    swarm_.health.on_sign_of_work(context, worker, attempt.sent_at);
    ++worker.groups_answered;
    worker.pairs_answered += attempt.num_pairs;
    ++counts_.groups_answered;
    swarm_.rounds.free_capacity();

    swarm_.checks.receive_answer(context, worker, attempt, std::move(answer),
                                 worker.published_peer || round.unsummed);
}

// Handles an answer to a cancelled attempt, or an answer that belongs to no attempt.
void SwarmFrames::on_unawaited_result(EventContext& context, Worker& worker,
                                      std::uint32_t sequence_id) {
    if (const SequenceIds::Cancelled* cancelled = worker.ids.find_cancelled(sequence_id)) {
        // The answer is late, but its latency is still a valid sample for groups of this size.
        if (worker.load == Duration{})  // with a load time, part of the latency may be a load
            worker.record_latency(context.now - cancelled->sent_at, cancelled->num_pairs,
                                  context.now);
        swarm_.reserve.on_late_answer(worker, sequence_id, *cancelled, context.now);
        swarm_.health.on_sign_of_work(context, worker, cancelled->sent_at);
        worker.ids.release_cancelled(sequence_id);
    } else if (!worker.ids.was_issued(sequence_id)) {
        return on_unasked_answer(context, worker, sequence_id);
    }

    ++worker.late;
    ++counts_.late;
    swarm_.rounds.free_capacity();
}

// Handles an answer with an id that was not yet issued when the answer was read. A worker that
// guesses the id of a future request cannot have computed it.
void SwarmFrames::on_unasked_answer(EventContext& context, Worker& worker,
                                    std::uint32_t sequence_id) {
    ++counts_.bad_frames;
    swarm_.sessions.refuse(
        context, worker,
        {ErrorCode::bad_field, text("an answer to ", sequence_id, ", which was never requested")},
        CloseCode::protocol_error);
}

std::string SwarmFrames::fault_of(const Worker& worker, const Attempt& attempt, const Round& round,
                                  const WorkerAnswer& answer) const {
    constexpr const char* another_shape = "the answer's shape is not the requested one";
    if (worker.published_peer != (answer.type == FrameType::result))
        return "the answer has another type than the request";
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
                           worker.published_peer || round.unsummed, options_.norm_bound))
        return "the answer is beyond the norm bound";
    return {};
}

void SwarmFrames::on_busy(EventContext& context, Worker& worker, const FrameHeader& header,
                          ByteView frame) {
    const Result<std::uint32_t> retry_ms = decode_busy(frame);
    if (!retry_ms.ok()) {
        refuse_bad(context, worker, retry_ms.error());
        return;
    }

    worker.busy_until = context.now +
                        std::clamp<Duration>(std::chrono::milliseconds(*retry_ms), 1ms, busy_max);
    context.set_timer(worker.busy_until, TimerKind::busy, worker.id);
    ++worker.busy;
    if (++worker.busy_in_row > options_.busy_in_row_max)
        swarm_.health.add_failure(context, worker, "BUSY in a row");

    const AttemptId* live = worker.ids.find_live(header.sequence_id);
    if (live == nullptr) {
        worker.ids.release_cancelled(header.sequence_id);
        return;
    }

    Attempt& attempt = *in_flight_.find_attempt(*live);
    Round& round = *in_flight_.find_round(attempt.round);

    worker.ids.release(attempt.sequence_id);
    swarm_.attempts.drop_attempt(context, attempt, AttemptFailure::busy);
    swarm_.rounds.dispatch(context, round);
}

void SwarmFrames::on_error(EventContext& context, Worker& worker, ByteView frame) {
    const Result<ErrorMessage> error = decode_error(frame);
    if (!error.ok()) {
        refuse_bad(context, worker, error.error());
        return;
    }

    ++worker.errors;
    if (error->fatal) {
        swarm_.sessions.remove_worker(context, worker.id, WorkerEvent::Kind::left,
                                      text("its error: ", error->code, ' ', error->found),
                                      CloseCode::going_away);
        return;
    }

    const AttemptId* live = worker.ids.find_live(error->sequence_id);
    if (live == nullptr) {
        worker.ids.release_cancelled(error->sequence_id);
        if (error->code == error_code_name(ErrorCode::no_space) && !worker.leaving())
            swarm_.placement.on_no_space(context, worker);
        return;
    }

    Attempt& attempt = *in_flight_.find_attempt(*live);
    Round& round = *in_flight_.find_round(attempt.round);

    AttemptFailure failure = AttemptFailure::error;
    if (error->code == error_code_name(ErrorCode::unknown_expert) ||
        error->code == error_code_name(ErrorCode::not_found)) {
        swarm_.placement.on_missing_units(context, worker, attempt, round);
    } else if (error->code == error_code_name(ErrorCode::num_tokens_range)) {
        // The worker has less memory than the limits need. From now on it is sent smaller groups;
        // slices that cannot be split go to other workers.
        const std::uint32_t taken = pairs_taken(*error, attempt.num_pairs);
        if (taken > 0) {
            pool_.set_pairs_max(worker, std::min(worker.pairs_max, taken));
            failure = AttemptFailure::busy;
        }
    } else if (error->code == error_code_name(ErrorCode::non_finite) &&
               swarm_.rounds.retry_in_bf16(round, attempt)) {
        failure = AttemptFailure::busy;
    }

    worker.ids.release(attempt.sequence_id);
    swarm_.attempts.drop_attempt(context, attempt, failure);
    swarm_.rounds.dispatch(context, round);
}

}  // namespace moex
