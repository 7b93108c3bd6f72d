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

bool names(const std::vector<std::string>& caps, std::string_view cap) {
    return std::find(caps.begin(), caps.end(), cap) != caps.end();
}

std::uint8_t dtype_bits_of(const std::vector<Dtype>& dtypes) {
    std::uint8_t bits = 0;
    for (const Dtype dtype : dtypes)
        bits |= static_cast<std::uint8_t>(1u << static_cast<unsigned>(dtype));
    return bits;
}

// Of who may not join now: it may try again, or not for long.
CloseCode refusal_code(const Error& error) {
    const bool lasts = error.code == ErrorCode::unauthorized ||
                       error.code == ErrorCode::unsupported;
    return lasts ? CloseCode::policy : CloseCode::going_away;
}

// Deterministic: all compute with the same x.
bool sends_x_int8(const SwarmOptions& options) {
    return options.x_int8 && !options.rounding.deterministic;
}

// Deterministic: answers differ by the order of f32 sums at most.
std::optional<WorkerArithmetic> arithmetic_asked(const SwarmOptions& options) {
    if (!options.rounding.deterministic) return std::nullopt;
    return WorkerArithmetic::exact;
}
}  // namespace

bool SwarmState::retry_in_bf16(Round& round, const Attempt& attempt) const {
    // deterministic: rounded to the wire's dtype, whoever answers
    if (attempt.shape.dtype != Dtype::f16 || options.rounding.deterministic) return false;

    const bool carried =
        options.local_fallback ||
        std::all_of(round.pieces.begin(), round.pieces.end(), [&](const Piece& piece) {
            return piece.done ||
                   std::ranges::any_of(directory.ready(piece.unit), [](const UnitHolder* holder) {
                       return worker_of(holder).accepts(Dtype::bf16);
                   });
        });
    if (!carried) return false;

    for (Piece& piece : round.pieces)
        if (!piece.done) piece.dtype = Dtype::bf16;
    return true;
}

void SwarmState::refuse(Turn& turn, Worker& worker, const Error& error, CloseCode code) {
    if (!worker.published_peer)
        turn.send(worker, encode_error({.code = error_code_name(error.code),
                                        .found = error.message,
                                        .fatal = true}));
    remove_worker(turn, worker.id, WorkerEvent::Kind::removed, error.message, code);
}

void SwarmState::on_frame(Turn& turn, Worker& worker, ByteView frame) {
    const Result<FrameHeader> header = decode_frame_header(frame);
    if (!header.ok()) {
        ++counts.bad_frames;
        refuse(turn, worker, header.error(), close_code_for(header.error().code));
        return;
    }

    if (!worker.welcomed()) {
        on_first_frame(turn, worker, *header, frame);
        return;
    }

    worker.cancels_since_heard = 0;
    worker.heard_at = heard_at = turn.now;
    unheard.clear();
    if (std::exchange(dark, false)) capacity_freed = true;

    switch (header->type) {
        case FrameType::heartbeat:
            if (const Status empty = decode_heartbeat(frame); !empty.ok()) {
                ++counts.bad_frames;
                refuse(turn, worker, empty.error(), close_code_for(empty.error().code));
                return;
            }
            on_heartbeat(turn, worker, *header);
            return;
        case FrameType::result:
        case FrameType::group_result: on_result(turn, worker, *header, frame); return;
        case FrameType::busy: on_busy(turn, worker, *header, frame); return;
        case FrameType::error: on_error(turn, worker, frame); return;
        case FrameType::ready: {
            const Result<std::vector<Unit>> units = decode_units(frame, options.limits);
            if (!units.ok()) {
                ++counts.bad_frames;
                refuse(turn, worker, units.error(), close_code_for(units.error().code));
                return;
            }

            // The first one of a worker that promised it says what it need not download, and is
            // no promise to answer, should it come late.
            if (std::exchange(worker.tells_held, false))
                place(turn, worker, units_of(*units));
            else
                mark_ready(turn, worker, units_of(*units));
            return;
        }
        case FrameType::drain: on_worker_drain(turn, worker, frame); return;
        case FrameType::budget:
            if (worker.published_peer) break;
            on_budget(turn, worker, frame);
            return;
        case FrameType::power:
            if (worker.published_peer) break;
            on_power(turn, worker, frame);
            return;
        default: break;
    }

    ++counts.bad_frames;
    refuse(turn, worker,
           {ErrorCode::unknown_type,
            text(frame_type_name(header->type), " is not a worker's to send")},
           CloseCode::protocol_error);
}

void SwarmState::on_first_frame(Turn& turn, Worker& worker, const FrameHeader& header,
                                ByteView frame) {
    if ((header.type == FrameType::hello || header.type == FrameType::heartbeat) &&
        frame.size() > hello_bytes_max) {
        ++counts.bad_frames;
        refuse(turn, worker,
               {ErrorCode::payload_size,
                text("a first frame of ", frame.size(), " bytes, at most ", hello_bytes_max)},
               CloseCode::too_big);
    } else if (header.type == FrameType::hello) {
        on_hello(turn, worker, frame);
    } else if (header.type == FrameType::heartbeat) {
        on_published_peer(turn, worker, frame);
    } else {
        ++counts.bad_frames;
        refuse(turn, worker,
               {ErrorCode::unknown_type,
                text("the first frame is ", frame_type_name(header.type), ", want HELLO")},
               CloseCode::protocol_error);
    }
}

// Why one more worker may not join: told before its WELCOME, so that no placement moves
// for it. One that comes back while its old connection still stands takes that one's place.
std::optional<Error> SwarmState::no_place_for(const Worker& worker, const std::string& worker_key) {
    if (auto shut = closed(worker.connected_at, worker_key)) return shut;
    if (options.limits.num_experts == 0)
        return Error{ErrorCode::unsupported,
                     "the hub computes a dense model by itself: it has no experts to hold"};

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

void SwarmState::on_hello(Turn& turn, Worker& worker, ByteView frame) {
    const Result<Hello> hello = decode_hello(frame);
    if (!hello.ok()) {
        ++counts.bad_frames;
        refuse(turn, worker, hello.error(), close_code_for(hello.error().code));
        return;
    }

    if (!worker.authorized && !(options.token_ok && options.token_ok(hello->token))) {
        refuse(turn, worker,
               {ErrorCode::unauthorized, "the join token is not right; open the join link again"},
               CloseCode::policy);
        return;
    }

    if (hello->version_min > protocol_version || hello->version_max < protocol_version) {
        const Error error{ErrorCode::unsupported_version,
                          text("the worker speaks versions ", hello->version_min, " to ",
                               hello->version_max, ", the hub ", protocol_version)};
        refuse(turn, worker, error, CloseCode::protocol_error);
        return;
    }

    worker.dtypes = dtype_bits_of(hello->dtypes);
    // tests: every worker of ours has it
    if (options.rounding.wire_dtype == Dtype::f32) worker.dtypes |= dtype_bits_of({Dtype::f32});

    if (!names(hello->caps, "group") || !worker.accepts(options.rounding.wire_dtype)) {
        refuse(turn, worker,
               {ErrorCode::unsupported, text("want the capability group and the dtype ",
                                             dtype_name(options.rounding.wire_dtype))},
               CloseCode::protocol_error);
        return;
    }

    if (const auto full = no_place_for(worker, hello->worker_key)) {
        refuse(turn, worker, *full, refusal_code(*full));
        return;
    }

    take_hello(worker, *hello);
    const auto asked = arithmetic_asked(options);

    turn.send(
        worker,
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
                        .caps = {"budget", "held", times_cap, power_cap},
                        .arithmetic = asked,
                        .nonce = options.nonce_of ? options.nonce_of(worker.id) : ""}));

    welcome(turn, worker);
}

// What it says of itself, once it is let in.
void SwarmState::take_hello(Worker& worker, const Hello& hello) {
    worker.device = hello.device;
    worker.nickname = hello.nickname;
    worker.client = hello.client;
    worker.worker_key = hello.worker_key;
    worker.arithmetic = arithmetic_asked(options).value_or(hello.arithmetic);
    worker.speed = hello.speed;
    worker.x_int8 = sends_x_int8(options) && names(hello.caps, x_int8_cap);
    worker.lz4 = options.lz4 && hello.lz4;
    worker.queue_depth = std::max(1u, options.queue_depth);
    worker.tells_held = names(hello.caps, "held");
    worker.on_demand = names(hello.caps, on_demand_cap);
    if (worker.on_demand) ++num_on_demand;
}

// A peer with the five published messages: its token came with
// the upgrade, its capabilities come in its first HEARTBEAT.
void SwarmState::on_published_peer(Turn& turn, Worker& worker, ByteView frame) {
    if (!worker.authorized) {
        refuse(turn, worker,
               {ErrorCode::unauthorized,
                "a first frame HEARTBEAT needs the token at the upgrade (Authorization: Bearer)"},
               CloseCode::policy);
        return;
    }

    worker.published_peer = true;

    const Result<Hello> capabilities = frame.size() == frame_header_bytes
                                           ? Hello{.dtypes = {Dtype::f16}}
                                           : decode_capabilities(frame);
    if (!capabilities.ok()) {
        ++counts.bad_frames;
        refuse(turn, worker, capabilities.error(), close_code_for(capabilities.error().code));
        return;
    }

    if (const auto full = no_place_for(worker, capabilities->worker_key)) {
        refuse(turn, worker, *full, refusal_code(*full));
        return;
    }

    worker.device = capabilities->device;
    worker.nickname = capabilities->nickname;
    worker.client = capabilities->client.empty() ? "published peer" : capabilities->client;
    worker.worker_key = capabilities->worker_key;
    worker.arithmetic = capabilities->arithmetic;
    worker.dtypes = dtype_bits_of(capabilities->dtypes) &
                    static_cast<std::uint8_t>(~(1u << static_cast<unsigned>(Dtype::f32)));

    if (!worker.accepts(options.rounding.wire_dtype)) {
        refuse(turn, worker,
               {ErrorCode::unsupported,
                text("this hub sends ", dtype_name(options.rounding.wire_dtype),
                     ", which is not among the peer's dtypes")},
               CloseCode::protocol_error);
        return;
    }

    // no message tells it to compute otherwise
    if (options.rounding.deterministic && worker.arithmetic != WorkerArithmetic::exact) {
        refuse(turn, worker,
               {ErrorCode::unsupported, "this hub is deterministic and takes exact answers only"},
               CloseCode::protocol_error);
        return;
    }

    // it never said that it can
    worker.lz4 = false;
    // the field is optional for it
    if (worker.device.budget_bytes == 0) worker.device.budget_bytes = 1ull << 30;
    // one frame per expert, so rounds, not frames, are bounded
    worker.queue_depth = std::max(1u, options.queue_depth) * options.limits.num_experts;

    welcome(turn, worker);
}

void SwarmState::welcome(Turn& turn, Worker& worker) {
    worker.health.on(HealthEvent::welcome, turn.now);
    worker.trust_key = worker.worker_key.empty() ? text('#', worker.id) : worker.worker_key;
    worker.is_proven = trust.trust(worker.trust_key, turn.now) == Trust::proven;
    worker.pairs_credited_before = trust.pairs_credited(worker.trust_key);
    worker.joined_at = worker.heard_at = turn.now;

    tell_frame_limit(turn, worker);
    turn.event(worker, WorkerEvent::Kind::joined,
               text("room for ", capacity_of(worker), " experts"));
    turn.set_timer(turn.now + options.heartbeat_every, TimerKind::heartbeat, worker.id);

    // A worker that comes back before the hub has noticed that it was
    // gone: its old connection is a ghost, and leaves its place.
    Worker* ghost = worker.worker_key.empty() ? nullptr
                                              : pool.find_key(worker.worker_key, worker.id);
    if (ghost != nullptr) {
        const Error replaced{ErrorCode::unavailable, "a newer connection has the same worker_key"};
        if (!ghost->published_peer)
            turn.send(*ghost, encode_error({.code = error_code_name(replaced.code),
                                            .found = replaced.message,
                                            .fatal = true}));
        remove_worker(turn, ghost->id, WorkerEvent::Kind::left, replaced.message,
                      CloseCode::policy);
    }

    if (worker.tells_held && options.held_wait > Duration::zero())
        turn.set_timer(turn.now + options.held_wait, TimerKind::place, worker.id);
    else
        place(turn, worker, {});
}

std::uint32_t SwarmState::capacity_of(const Worker& worker) const {
    if (drained.contains(ring_key_of(worker))) return 0;
    if (options.expert_blob_bytes == 0) return directory.num_units();
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(
        directory.num_units(), worker.device.budget_bytes / options.expert_blob_bytes));
}

// Another memory limit on a connection that serves. What the worker let go of is asked of it no
// more from here on; the placement keeps the rest where it is.
void SwarmState::on_budget(Turn& turn, Worker& worker, ByteView frame) {
    const Result<Budget> budget = decode_budget(frame, options.limits);
    if (!budget.ok()) {
        ++counts.bad_frames;
        refuse(turn, worker, budget.error(), close_code_for(budget.error().code));
        return;
    }
    if (worker.leaving()) return;
    worker.device.budget_bytes = budget->budget_bytes;
    // its buffers for calls have another size as well: it says so again if a group is too large
    set_pairs_max(worker, std::numeric_limits<std::uint32_t>::max());

    directory.on_budget(worker, capacity_of(worker), units_of(budget->dropped), turn.now);
    carry_out_orders(turn);
}

void SwarmState::on_power(Turn& turn, Worker& worker, ByteView frame) {
    const Result<std::uint32_t> percent = decode_power(frame);
    if (!percent.ok()) {
        ++counts.bad_frames;
        refuse(turn, worker, percent.error(), close_code_for(percent.error().code));
        return;
    }
    worker.power = *percent / 100.0;
}

void SwarmState::on_heartbeat(Turn& turn, Worker& worker, const FrameHeader& header) {
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
        worker.health.on(HealthEvent::echo, turn.now);
        turn.event(worker, WorkerEvent::Kind::healthy, "its heartbeat is back");
    }

    mark_ready(turn, worker, loaded);
    capacity_freed = true;  // its silence is over
}

void SwarmState::on_result(Turn& turn, Worker& worker, const FrameHeader& header, ByteView frame) {
    const AttemptId* live = worker.ids.find_live(header.sequence_id);
    if (live == nullptr) return on_unawaited_result(turn, worker, header.sequence_id);

    Attempt& attempt = *find_attempt(*live);
    Round& round = *find_round(attempt.round);
    ReadAnswer answer = read_answer(worker, attempt, round, header.type, frame);

    if (answer.broken && answer.broken->code != ErrorCode::non_finite) {
        // Bytes that are no answer at all: the connection
        // is of no use. Its attempts are given to others.
        ++counts.bad_frames;
        refuse(turn, worker, *answer.broken, close_code_for(answer.broken->code));
        return;
    }

    if (answer.broken && worker.published_peer) {
        // It has no ERROR to say so with: an infinity is how
        // f16 overflows there. No lie, but no answer either.
        ++worker.errors;
        worker.ids.release(attempt.sequence_id);
        const bool again = retry_in_bf16(round, attempt);
        drop_attempt(turn, attempt, again ? Failure::busy : Failure::error);
        dispatch(turn, round);
        return;
    }

    if (answer.broken) answer.wrong = answer.broken->message;
    if (answer.wrong.empty() &&
        !within_norm_bound(round, attempt, answer.y, answer.unsummed, options.norm_bound))
        answer.wrong = "the answer is beyond the norm bound";
    if (!answer.wrong.empty()) return on_wrong_answer(turn, worker, attempt, answer.wrong);

    worker.ids.release(attempt.sequence_id);
    learn_latency(turn.now, attempt, worker);
    group_latency.record(turn.now - attempt.sent_at);
    if (answer.times)
        for (RoundSplit* split : {&worker.split, &counts.split})
            split->record(turn.now - attempt.sent_at, *answer.times);
    on_sign_of_work(turn, worker, attempt.sent_at);
    ++worker.groups_answered;
    worker.pairs_answered += attempt.num_pairs;
    ++counts.groups_answered;
    capacity_freed = true;

    receive_answer(turn, worker, attempt, std::move(answer.y), answer.unsummed);
}

// Of an attempt that was cancelled, or of none at all.
void SwarmState::on_unawaited_result(Turn& turn, Worker& worker, std::uint32_t sequence_id) {
    if (const SequenceIds::Cancelled* cancelled = worker.ids.find_cancelled(sequence_id)) {
        // late, but it tells how long such work takes
        worker.record_latency(turn.now - cancelled->sent_at, cancelled->num_pairs, turn.now);
        on_sign_of_work(turn, worker, cancelled->sent_at);
        worker.ids.release_cancelled(sequence_id);
    } else if (!worker.ids.was_issued(sequence_id)) {
        ++counts.bad_frames;
        refuse(
            turn, worker,
            {ErrorCode::bad_field, text("an answer to ", sequence_id, ", which was never asked")},
            CloseCode::protocol_error);
        return;
    }

    ++worker.late;
    ++counts.late;
    capacity_freed = true;
}

SwarmState::ReadAnswer SwarmState::read_answer(const Worker& worker, const Attempt& attempt,
                                               const Round& round, FrameType type, ByteView frame) {
    constexpr const char* another_shape = "the answer's shape is not the question's";
    ReadAnswer read{.unsummed = worker.published_peer || round.unsummed};

    if (worker.published_peer != (type == FrameType::result)) {
        read.wrong = "the answer is of another type than the question";
    } else if (worker.published_peer) {
        Result<ExpertResult> answer = decode_result(frame, options.limits);
        if (!answer.ok())
            read.broken = answer.error();
        else if (answer->layer != attempt.shape.layer ||
                 answer->expert != round.pieces[attempt.pieces.front()].expert ||
                 answer->dtype != attempt.shape.dtype ||
                 answer->y.size() != std::size_t{attempt.num_pairs} * round.hidden_size)
            read.wrong = another_shape;
        else
            read.y = std::move(answer->y);
    } else {
        Result<GroupResult> answer = decode_group_result(frame, options.limits,
                                                         answer_memory.take());
        if (!answer.ok())
            read.broken = answer.error();
        else if (!(answer->shape == attempt.shape))
            read.wrong = another_shape;
        else
            read.y = std::move(answer->y);
        if (answer.ok()) read.times = answer->times;
    }
    return read;
}

// A lie that need not be computed again to be seen as one.
void SwarmState::on_wrong_answer(Turn& turn, Worker& worker, Attempt& attempt,
                                 const std::string& wrong) {
    const RoundId round_id = attempt.round;
    worker.ids.release(attempt.sequence_id);
    drop_attempt(turn, attempt, Failure::bad_answer);

    const bool banned = options.checks.on &&
                        trust.on_verdict(worker.trust_key, worker.trust_address, Verdict::lie, {},
                                         turn.now);
    worker.is_proven = trust.trust(worker.trust_key, turn.now) == Trust::proven;
    on_lie(turn, worker.id, wrong, banned);
    if (!banned && worker.bad_answers >= options.bad_answers_max)
        refuse(turn, worker,
               {ErrorCode::bad_field, text(worker.bad_answers, " bad answers, the last: ", wrong)},
               CloseCode::policy);
    if (Round* open = find_round(round_id)) dispatch(turn, *open);
}

void SwarmState::on_busy(Turn& turn, Worker& worker, const FrameHeader& header, ByteView frame) {
    const Result<std::uint32_t> retry_ms = decode_busy(frame);
    if (!retry_ms.ok()) {
        ++counts.bad_frames;
        refuse(turn, worker, retry_ms.error(), close_code_for(retry_ms.error().code));
        return;
    }

    worker.busy_until = turn.now +
                        std::clamp<Duration>(std::chrono::milliseconds(*retry_ms), 1ms, busy_max);
    turn.set_timer(worker.busy_until, TimerKind::busy, worker.id);
    ++worker.busy;
    if (++worker.busy_in_row > options.busy_in_row_max) add_failure(turn, worker, "BUSY in a row");

    const AttemptId* live = worker.ids.find_live(header.sequence_id);
    if (live == nullptr) {
        worker.ids.release_cancelled(header.sequence_id);
        return;
    }

    Attempt& attempt = *find_attempt(*live);
    Round& round = *find_round(attempt.round);

    worker.ids.release(attempt.sequence_id);
    drop_attempt(turn, attempt, Failure::busy);
    dispatch(turn, round);
}

void SwarmState::on_error(Turn& turn, Worker& worker, ByteView frame) {
    const Result<ErrorMessage> error = decode_error(frame);
    if (!error.ok()) {
        ++counts.bad_frames;
        refuse(turn, worker, error.error(), close_code_for(error.error().code));
        return;
    }

    ++worker.errors;
    if (error->fatal) {
        remove_worker(turn, worker.id, WorkerEvent::Kind::left,
                      text("its error: ", error->code, ' ', error->found), CloseCode::going_away);
        return;
    }

    const AttemptId* live = worker.ids.find_live(error->sequence_id);
    if (live == nullptr) {
        worker.ids.release_cancelled(error->sequence_id);
        if (error->code == error_code_name(ErrorCode::no_space) && !worker.leaving()) {
            directory.on_no_space(worker, turn.now);
            carry_out_orders(turn);
        }
        return;
    }

    Attempt& attempt = *find_attempt(*live);
    Round& round = *find_round(attempt.round);

    Failure failure = Failure::error;
    if (error->code == error_code_name(ErrorCode::unknown_expert) ||
        error->code == error_code_name(ErrorCode::not_found)) {
        on_missing_units(turn, worker, attempt, round);
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
    drop_attempt(turn, attempt, failure);
    dispatch(turn, round);
}

// It leaves: what it holds goes to others now; what it was asked
// it may answer. close_drained() closes the connection after that.
void SwarmState::on_worker_drain(Turn& turn, Worker& worker, ByteView frame) {
    const Result<std::uint32_t> deadline_ms = decode_drain(frame);
    if (!deadline_ms.ok()) {
        ++counts.bad_frames;
        refuse(turn, worker, deadline_ms.error(), close_code_for(deadline_ms.error().code));
        return;
    }
    if (!worker.health.on(HealthEvent::drain, turn.now)) return;

    leavers.push_back(worker.id);
    turn.set_timer(turn.now + std::chrono::milliseconds(*deadline_ms), TimerKind::drain, worker.id);
    directory.leave(worker, false, turn.now);
    if (!draining) directory.settle(turn.now);
    carry_out_orders(turn);
}

}  // namespace moex
