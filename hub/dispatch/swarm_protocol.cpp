// Frames in: what each means in the state its connection
// is in, and how a connection ends that breaks the rules.
#include <algorithm>
#include <charconv>

#include "hub/dispatch/swarm_state.h"

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

std::uint8_t dtype_bits_of(const std::vector<Dtype>& dtypes) {
    std::uint8_t bits = 0;
    for (const Dtype dtype : dtypes)
        bits |= static_cast<std::uint8_t>(1u << static_cast<unsigned>(dtype));
    return bits;
}
}  // namespace

bool SwarmCore::State::retry_in_bf16(Round& round, const Attempt& attempt) const {
    // deterministic: rounded to the wire's dtype, whoever answers
    if (attempt.shape.dtype != Dtype::f16 || options.rounding.deterministic) return false;
    const bool carried =
        options.local_fallback ||
        std::all_of(round.pieces.begin(), round.pieces.end(), [&](const Piece& piece) {
            return piece.done ||
                   std::any_of(ready[piece.unit].begin(), ready[piece.unit].end(),
                               [](const Worker* worker) { return worker->accepts(Dtype::bf16); });
        });
    if (!carried) return false;

    for (Piece& piece : round.pieces)
        if (!piece.done) piece.dtype = Dtype::bf16;
    return true;
}

void SwarmCore::State::refuse(TimePoint now, Worker& worker, const Error& error, CloseCode code,
                              Actions& actions) {
    if (!worker.published_peer)
        send(worker,
             encode_error(
                 {.code = error_code_name(error.code), .found = error.message, .fatal = true}),
             actions);
    remove_worker(now, worker.id, WorkerEvent::Kind::removed, error.message, code, actions);
}

void SwarmCore::State::on_frame(TimePoint now, Worker& worker, ByteView frame, Actions& actions) {
    const Result<FrameHeader> header = decode_frame_header(frame);
    if (!header.ok()) {
        ++counts.bad_frames;
        refuse(now, worker, header.error(), close_code_for(header.error().code), actions);
        return;
    }
    if (!worker.welcomed) {
        on_first_frame(now, worker, *header, frame, actions);
        return;
    }
    worker.cancels_since_heard = 0;
    worker.heard_at = now;
    switch (header->type) {
        case FrameType::heartbeat:
            if (const Status empty = decode_heartbeat(frame); !empty.ok()) {
                ++counts.bad_frames;
                refuse(now, worker, empty.error(), close_code_for(empty.error().code), actions);
                return;
            }
            on_heartbeat(now, worker, *header, actions);
            return;
        case FrameType::result:
        case FrameType::group_result: on_result(now, worker, *header, frame, actions); return;
        case FrameType::busy: on_busy(now, worker, *header, frame, actions); return;
        case FrameType::error: on_error(now, worker, frame, actions); return;
        case FrameType::ready: {
            const Result<std::vector<Unit>> units = decode_units(frame, options.limits);
            if (!units.ok()) {
                ++counts.bad_frames;
                refuse(now, worker, units.error(), close_code_for(units.error().code), actions);
                return;
            }
            std::vector<std::uint32_t> indices;
            for (const Unit& unit : *units)
                if (is_unit(unit)) indices.push_back(unit_of(unit.layer, unit.expert));
            mark_ready(now, worker, indices, actions);
            return;
        }
        case FrameType::drain: on_worker_drain(now, worker, frame, actions); return;
        case FrameType::budget:
            if (worker.published_only) break;
            on_budget(now, worker, frame, actions);
            return;
        default: break;
    }
    ++counts.bad_frames;
    refuse(now, worker,
           {ErrorCode::unknown_type,
            text(frame_type_name(header->type), " is not a worker's to send")},
           CloseCode::protocol_error, actions);
}

void SwarmCore::State::on_first_frame(TimePoint now, Worker& worker, const FrameHeader& header,
                                      ByteView frame, Actions& actions) {
    if ((header.type == FrameType::hello || header.type == FrameType::heartbeat) &&
        frame.size() > hello_bytes_max) {
        ++counts.bad_frames;
        refuse(now, worker,
               {ErrorCode::payload_size,
                text("a first frame of ", frame.size(), " bytes, at most ", hello_bytes_max)},
               CloseCode::too_big, actions);
    } else if (header.type == FrameType::hello) {
        on_hello(now, worker, frame, actions);
    } else if (header.type == FrameType::heartbeat) {
        on_published_peer(now, worker, frame, actions);
    } else {
        ++counts.bad_frames;
        refuse(now, worker,
               {ErrorCode::unknown_type,
                text("the first frame is ", frame_type_name(header.type), ", want HELLO")},
               CloseCode::protocol_error, actions);
    }
}

// Why one more worker may not join: told before its WELCOME, so that no placement moves
// for it. One that comes back while its old connection still stands takes that one's place.
std::optional<Error> SwarmCore::State::no_place_for(const Worker& worker,
                                                    const std::string& worker_key) {
    const Worker* ghost = worker_key.empty() ? nullptr : pool.find_key(worker_key, worker.id);
    if (ghost == nullptr && pool.num_welcomed() >= options.workers_max)
        return Error{ErrorCode::overloaded,
                     text("the hub has its ", options.workers_max, " workers; try again later")};

    const bool moves_in = ghost == nullptr || ghost->owner != worker.owner;
    if (options.workers_per_address_max > 0 && moves_in &&
        pool.num_welcomed_of(worker.owner) >= options.workers_per_address_max)
        return Error{ErrorCode::overloaded,
                     text("this address lends ", options.workers_per_address_max,
                          " workers already; the hub takes no more of it")};
    return std::nullopt;
}

void SwarmCore::State::on_hello(TimePoint now, Worker& worker, ByteView frame, Actions& actions) {
    const Result<Hello> hello = decode_hello(frame);
    if (!hello.ok()) {
        ++counts.bad_frames;
        refuse(now, worker, hello.error(), close_code_for(hello.error().code), actions);
        return;
    }
    if (!worker.authorized && !(options.token_ok && options.token_ok(hello->token))) {
        refuse(now, worker,
               {ErrorCode::unauthorized, "the join token is not right; open the join link again"},
               CloseCode::policy, actions);
        return;
    }
    if (hello->version_min > protocol_version || hello->version_max < protocol_version) {
        const Error error{ErrorCode::unsupported_version,
                          text("the worker speaks versions ", hello->version_min, " to ",
                               hello->version_max, ", the hub ", protocol_version)};
        refuse(now, worker, error, CloseCode::protocol_error, actions);
        return;
    }
    worker.dtypes = dtype_bits_of(hello->dtypes);
    // tests: every worker of ours has it
    if (options.rounding.wire_dtype == Dtype::f32)
        worker.dtypes |= 1u << static_cast<unsigned>(Dtype::f32);
    const bool groups = std::find(hello->caps.begin(), hello->caps.end(), "group") !=
                        hello->caps.end();
    if (!groups || !worker.accepts(options.rounding.wire_dtype)) {
        refuse(now, worker,
               {ErrorCode::unsupported, text("want the capability group and the dtype ",
                                             dtype_name(options.rounding.wire_dtype))},
               CloseCode::protocol_error, actions);
        return;
    }
    if (const auto full = no_place_for(worker, hello->worker_key)) {
        refuse(now, worker, *full, CloseCode::going_away, actions);
        return;
    }
    worker.device = hello->device;
    worker.nickname = hello->nickname;
    worker.client = hello->client;
    worker.worker_key = hello->worker_key;
    worker.lz4 = options.lz4 && hello->lz4;
    worker.queue_depth = std::max(1u, options.queue_depth);
    send(worker,
         encode_welcome({.version = protocol_version,
                         .worker_id = worker.id,
                         .model_name = options.model_name,
                         .package_sha256 = options.package_sha256,
                         .limits = options.limits,
                         .expert_shape = options.expert_shape,
                         .top_k = options.top_k,
                         .expert_blob_bytes = options.expert_blob_bytes,
                         .dtype = options.rounding.wire_dtype,
                         .lz4 = worker.lz4,
                         .heartbeat_ms = static_cast<std::uint32_t>(options.heartbeat_every / 1ms),
                         .queue_depth = worker.queue_depth,
                         .caps = {"budget"}}),
         actions);
    welcome(now, worker, actions);
}

// A peer with the five published messages: its token came with
// the upgrade, its capabilities come in its first HEARTBEAT.
void SwarmCore::State::on_published_peer(TimePoint now, Worker& worker, ByteView frame,
                                         Actions& actions) {
    if (!worker.authorized) {
        refuse(now, worker,
               {ErrorCode::unauthorized,
                "a first frame HEARTBEAT needs the token at the upgrade (Authorization: Bearer)"},
               CloseCode::policy, actions);
        return;
    }
    worker.published_peer = true;
    const Result<Hello> capabilities = frame.size() == frame_header_bytes
                                           ? Hello{.dtypes = {Dtype::f16}}
                                           : decode_capabilities(frame);
    if (!capabilities.ok()) {
        ++counts.bad_frames;
        refuse(now, worker, capabilities.error(), close_code_for(capabilities.error().code),
               actions);
        return;
    }
    if (const auto full = no_place_for(worker, capabilities->worker_key)) {
        refuse(now, worker, *full, CloseCode::going_away, actions);
        return;
    }
    worker.device = capabilities->device;
    worker.nickname = capabilities->nickname;
    worker.client = capabilities->client.empty() ? "published peer" : capabilities->client;
    worker.worker_key = capabilities->worker_key;
    worker.dtypes = dtype_bits_of(capabilities->dtypes) &
                    static_cast<std::uint8_t>(~(1u << static_cast<unsigned>(Dtype::f32)));
    if (!worker.accepts(options.rounding.wire_dtype)) {
        refuse(now, worker,
               {ErrorCode::unsupported,
                text("this hub sends ", dtype_name(options.rounding.wire_dtype),
                     ", which is not among the peer's dtypes")},
               CloseCode::protocol_error, actions);
        return;
    }
    // it never said that it can
    worker.lz4 = false;
    // the field is optional for it
    if (worker.device.budget_bytes == 0) worker.device.budget_bytes = 1ull << 30;
    // one frame per expert, so rounds, not frames, are bounded
    worker.queue_depth = std::max(1u, options.queue_depth) * options.limits.num_experts;
    welcome(now, worker, actions);
}

void SwarmCore::State::welcome(TimePoint now, Worker& worker, Actions& actions) {
    worker.welcomed = true;
    worker.joined_at = worker.heard_at = now;
    tell_frame_limit(worker, actions);
    worker.units.assign(holders.size(), 0);
    worker.capacity_units = capacity_of(worker);
    event(worker, WorkerEvent::Kind::joined, text("room for ", worker.capacity_units, " experts"),
          actions);
    set_timer(now + options.heartbeat_every, TimerKind::heartbeat, worker.id);
    std::vector<PlacementChange> changes;
    // A worker that comes back before the hub has noticed that it was
    // gone: its old connection is a ghost, and hands over its place.
    Worker* ghost = worker.worker_key.empty() ? nullptr
                                              : pool.find_key(worker.worker_key, worker.id);
    if (ghost != nullptr) placement.leave(ghost->id, changes);
    // The worker's own key places it where it was before.
    const std::uint64_t ring_key = worker.worker_key.empty() ? mix_hash(0, worker.id)
                                                             : text_hash(worker.worker_key);
    placement.join({.worker = worker.id,
                    .ring_key = ring_key,
                    .capacity_units = worker.capacity_units,
                    .address_prefix = worker.prefix},
                   changes);
    if (ghost != nullptr) {
        const Error replaced{ErrorCode::unavailable, "a newer connection has the same worker_key"};
        if (!ghost->published_peer)
            send(*ghost,
                 encode_error({.code = error_code_name(replaced.code),
                               .found = replaced.message,
                               .fatal = true}),
                 actions);
        remove_worker(now, ghost->id, WorkerEvent::Kind::left, replaced.message, CloseCode::policy,
                      actions);
    }
    apply(now, changes, actions);
}

std::uint32_t SwarmCore::State::capacity_of(const Worker& worker) const {
    if (options.expert_blob_bytes == 0) return static_cast<std::uint32_t>(holders.size());
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(
        holders.size(), worker.device.budget_bytes / options.expert_blob_bytes));
}

// Another memory limit on a connection that serves. What the worker let go of is asked of it no
// more from here on; the placement keeps the rest where it is.
void SwarmCore::State::on_budget(TimePoint now, Worker& worker, ByteView frame, Actions& actions) {
    const Result<Budget> budget = decode_budget(frame, options.limits);
    if (!budget.ok()) {
        ++counts.bad_frames;
        refuse(now, worker, budget.error(), close_code_for(budget.error().code), actions);
        return;
    }
    if (worker.leaving) return;
    worker.device.budget_bytes = budget->budget_bytes;
    worker.capacity_units = capacity_of(worker);
    // its buffers for calls have another size as well: it says so again if a group is too large
    worker.pairs_max = std::numeric_limits<std::uint32_t>::max();

    std::vector<std::uint32_t> spare;
    for (const Unit& unit : budget->dropped)
        if (is_unit(unit)) spare.push_back(unit_of(unit.layer, unit.expert));
    for (const std::uint32_t unit : spare) unassign(now, worker, unit);
    // then what it has not loaded yet: nobody misses that
    for (std::uint32_t unit = 0; unit < worker.units.size(); ++unit)
        if (worker.has(unit, Worker::wanted) && !worker.has(unit, Worker::ready))
            spare.push_back(unit);

    std::vector<PlacementChange> changes;
    placement.resize(worker.id, worker.capacity_units, spare, changes);
    worker.assign_pending = true;  // a unit may be wanted here that was just let go
    apply(now, changes, actions);
}

void SwarmCore::State::on_heartbeat(TimePoint now, Worker& worker, const FrameHeader& header,
                                    Actions& actions) {
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
    if (worker.unhealthy && sent_at >= worker.unhealthy_since) {
        worker.unhealthy = false;
        worker.failures_in_row = 0;
        capacity_freed = true;
        event(worker, WorkerEvent::Kind::healthy, "its heartbeat is back", actions);
    }
    mark_ready(now, worker, loaded, actions);
    capacity_freed = true;  // its silence is over
}

void SwarmCore::State::on_result(TimePoint now, Worker& worker, const FrameHeader& header,
                                 ByteView frame, Actions& actions) {
    const AttemptId* live = worker.ids.find_live(header.sequence_id);
    if (live == nullptr) {
        if (const SequenceIds::Cancelled* cancelled = worker.ids.find_cancelled(
                header.sequence_id)) {
            // late, but it tells how long such work takes
            worker.record_latency(now - cancelled->sent_at, cancelled->num_pairs);
            worker.ids.release_cancelled(header.sequence_id);
        } else if (!worker.ids.was_issued(header.sequence_id)) {
            ++counts.bad_frames;
            refuse(now, worker,
                   {ErrorCode::bad_field,
                    text("an answer to ", header.sequence_id, ", which was never asked")},
                   CloseCode::protocol_error, actions);
            return;
        }
        ++worker.late;
        ++counts.late;
        capacity_freed = true;
        return;
    }
    Attempt& attempt = *find_attempt(*live);
    Round& round = *find_round(attempt.round);
    bool unsummed = round.unsummed;
    std::vector<float> y;
    std::string wrong;
    std::optional<Error> broken;
    if (worker.published_peer != (header.type == FrameType::result)) {
        wrong = "the answer is of another type than the question";
    } else if (worker.published_peer) {
        unsummed = true;
        Result<ExpertResult> answer = decode_result(frame, options.limits);
        if (!answer.ok())
            broken = answer.error();
        else if (answer->layer != attempt.shape.layer ||
                 answer->expert != round.pieces[attempt.pieces.front()].expert ||
                 answer->dtype != attempt.shape.dtype ||
                 answer->y.size() != std::size_t{attempt.num_pairs} * round.hidden_size)
            wrong = "the answer's shape is not the question's";
        else
            y = std::move(answer->y);
    } else {
        Result<GroupResult> answer = decode_group_result(frame, options.limits);
        if (!answer.ok())
            broken = answer.error();
        else if (!(answer->shape == attempt.shape))
            wrong = "the answer's shape is not the question's";
        else
            y = std::move(answer->y);
    }
    if (broken && broken->code != ErrorCode::non_finite) {
        // Bytes that are no answer at all: the connection
        // is of no use. Its attempts are given to others.
        ++counts.bad_frames;
        refuse(now, worker, *broken, close_code_for(broken->code), actions);
        return;
    }
    if (broken && worker.published_peer) {
        // It has no ERROR to say so with: an infinity is how
        // f16 overflows there. No lie, but no answer either.
        ++worker.errors;
        worker.ids.release(attempt.sequence_id);
        const bool again = retry_in_bf16(round, attempt);
        drop_attempt(now, attempt, again ? Failure::busy : Failure::error, actions);
        dispatch(now, round, actions);
        return;
    }
    if (broken) wrong = broken->message;
    if (wrong.empty() && !within_norm_bound(round, attempt, y, unsummed, options.norm_bound))
        wrong = "the answer is beyond the norm bound";
    if (!wrong.empty()) {
        ++worker.bad_answers;
        ++counts.bad_answers;
        const RoundId round_id = round.id;
        worker.ids.release(attempt.sequence_id);
        drop_attempt(now, attempt, Failure::bad_answer, actions);
        if (worker.bad_answers >= options.bad_answers_max)
            refuse(
                now, worker,
                {ErrorCode::bad_field, text(worker.bad_answers, " bad answers, the last: ", wrong)},
                CloseCode::policy, actions);
        if (Round* open = find_round(round_id)) dispatch(now, *open, actions);
        return;
    }
    worker.ids.release(attempt.sequence_id);
    const Duration latency = now - attempt.sent_at;
    worker.record_latency(latency, attempt.num_pairs);
    group_latency.record(latency);
    worker.failures_in_row = 0;
    ++worker.groups_answered;
    worker.pairs_answered += attempt.num_pairs;
    ++counts.groups_answered;
    capacity_freed = true;
    accept_answer(now, attempt, std::move(y), unsummed, actions);
}

void SwarmCore::State::on_busy(TimePoint now, Worker& worker, const FrameHeader& header,
                               ByteView frame, Actions& actions) {
    const Result<std::uint32_t> retry_ms = decode_busy(frame);
    if (!retry_ms.ok()) {
        ++counts.bad_frames;
        refuse(now, worker, retry_ms.error(), close_code_for(retry_ms.error().code), actions);
        return;
    }
    worker.busy_until = now +
                        std::clamp<Duration>(std::chrono::milliseconds(*retry_ms), 1ms, busy_max);
    set_timer(worker.busy_until, TimerKind::busy, worker.id);
    ++worker.busy;
    const AttemptId* live = worker.ids.find_live(header.sequence_id);
    if (live == nullptr) {
        worker.ids.release_cancelled(header.sequence_id);
        return;
    }
    Attempt& attempt = *find_attempt(*live);
    Round& round = *find_round(attempt.round);
    worker.ids.release(attempt.sequence_id);
    drop_attempt(now, attempt, Failure::busy, actions);
    dispatch(now, round, actions);
}

// The worker does not hold something of this attempt: nothing of it is asked
// there until READY names it again. It is assigned anew, so that a worker that
// lost its weights fetches them; one that goes on saying so is left alone.
void SwarmCore::State::on_missing_units(TimePoint now, Worker& worker, const Attempt& attempt,
                                        const Round& round, Actions& actions) {
    constexpr std::uint64_t errors_max = 16;
    std::vector<std::uint32_t> again;
    for (const std::uint32_t piece : attempt.pieces) {
        const std::uint32_t unit = round.pieces[piece].unit;
        mark_not_ready(worker, unit);
        if (worker.has(unit, Worker::assigned)) again.push_back(unit);
    }
    if (worker.errors <= errors_max) send_assign(now, worker, again, actions);
}

void SwarmCore::State::on_error(TimePoint now, Worker& worker, ByteView frame, Actions& actions) {
    const Result<ErrorMessage> error = decode_error(frame);
    if (!error.ok()) {
        ++counts.bad_frames;
        refuse(now, worker, error.error(), close_code_for(error.error().code), actions);
        return;
    }
    ++worker.errors;
    if (error->fatal) {
        remove_worker(now, worker.id, WorkerEvent::Kind::left,
                      text("its error: ", error->code, ' ', error->found), CloseCode::going_away,
                      actions);
        return;
    }
    const AttemptId* live = worker.ids.find_live(error->sequence_id);
    if (live == nullptr) {
        worker.ids.release_cancelled(error->sequence_id);
        return;
    }
    Attempt& attempt = *find_attempt(*live);
    Round& round = *find_round(attempt.round);
    Failure failure = Failure::error;
    if (error->code == error_code_name(ErrorCode::unknown_expert) ||
        error->code == error_code_name(ErrorCode::not_found)) {
        on_missing_units(now, worker, attempt, round, actions);
    } else if (error->code == error_code_name(ErrorCode::num_tokens_range)) {
        // Its memory is less than the limits allow. Smaller groups
        // may go there; what cannot be split goes elsewhere.
        const std::uint32_t taken = pairs_taken(*error, attempt.num_pairs);
        if (taken > 0) {
            worker.pairs_max = std::min(worker.pairs_max, taken);
            failure = Failure::busy;
        }
    } else if (error->code == error_code_name(ErrorCode::non_finite) &&
               retry_in_bf16(round, attempt)) {
        failure = Failure::busy;
    }
    worker.ids.release(attempt.sequence_id);
    drop_attempt(now, attempt, failure, actions);
    dispatch(now, round, actions);
}

// It leaves: what it holds goes to others now, what it was asked
// it may answer. close_drained() closes the connection after that.
void SwarmCore::State::on_worker_drain(TimePoint now, Worker& worker, ByteView frame,
                                       Actions& actions) {
    const Result<std::uint32_t> deadline_ms = decode_drain(frame);
    if (!deadline_ms.ok()) {
        ++counts.bad_frames;
        refuse(now, worker, deadline_ms.error(), close_code_for(deadline_ms.error().code), actions);
        return;
    }
    if (std::exchange(worker.leaving, true)) return;
    leavers.push_back(worker.id);
    set_timer(now + std::chrono::milliseconds(*deadline_ms), TimerKind::drain, worker.id);
    forget_holder(now, worker);
    worker.assign_pending = false;
    std::vector<PlacementChange> changes;
    placement.leave(worker.id, changes);
    if (!draining) apply(now, changes, actions);
}

}  // namespace moex
