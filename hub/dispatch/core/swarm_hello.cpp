// The start of a session: the first frame, admission and WELCOME. This file also admits peers that
// speak the five published messages.
#include <algorithm>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {

namespace {
bool names(const std::vector<std::string>& caps, std::string_view cap) {
    return std::find(caps.begin(), caps.end(), cap) != caps.end();
}

std::uint8_t dtype_bits_of(const std::vector<Dtype>& dtypes) {
    std::uint8_t bits = 0;
    for (const Dtype dtype : dtypes)
        bits |= static_cast<std::uint8_t>(1u << static_cast<unsigned>(dtype));
    return bits;
}

// Returns the close code for a refused worker: `policy` if the reason is permanent, `going_away` if
// the worker may try again.
CloseCode refusal_code(const Error& error) {
    const bool lasts = error.code == ErrorCode::unauthorized ||
                       error.code == ErrorCode::unsupported;
    return lasts ? CloseCode::policy : CloseCode::going_away;
}

// Returns true if x may be sent as int8. With deterministic rounding it may not, so that all
// workers compute with the same x.
bool sends_x_int8(const SwarmOptions& options) {
    return options.x_int8 && !options.rounding.deterministic;
}

// Returns the arithmetic that workers must use, if any. With deterministic rounding it is exact, so
// that answers differ at most by the order of f32 sums.
std::optional<WorkerArithmetic> arithmetic_asked(const SwarmOptions& options) {
    if (!options.rounding.deterministic) return std::nullopt;
    return WorkerArithmetic::exact;
}
}  // namespace

void SwarmSessions::on_first_frame(EventContext& context, Worker& worker, const FrameHeader& header,
                                   ByteView frame) {
    if ((header.type == FrameType::hello || header.type == FrameType::heartbeat) &&
        frame.size() > hello_bytes_max) {
        ++counts_.bad_frames;
        refuse(context, worker,
               {ErrorCode::payload_size,
                text("a first frame of ", frame.size(), " bytes, at most ", hello_bytes_max)},
               CloseCode::too_big);
    } else if (header.type == FrameType::hello) {
        on_hello(context, worker, frame);
    } else if (header.type == FrameType::heartbeat) {
        on_published_peer(context, worker, frame);
    } else {
        ++counts_.bad_frames;
        refuse(context, worker,
               {ErrorCode::unknown_type,
                text("the first frame is ", frame_type_name(header.type), ", want HELLO")},
               CloseCode::protocol_error);
    }
}

// Returns the reason why one more worker may not join; nullopt if it may. The check runs before
// WELCOME, so that the placement does not change for a worker that is then refused. A worker that
// returns while its old connection is still open is not counted as one more, because it replaces
// that connection. `caps` says which experts the worker computes; a published peer has no caps.
std::optional<Error> SwarmSessions::no_place_for(const Worker& worker,
                                                 const std::string& worker_key,
                                                 const std::vector<std::string>& caps) {
    if (auto shut = swarm_.checks.closed(worker.connected_at, worker_key)) return shut;
    if (options_.limits.num_experts == 0)
        return Error{ErrorCode::unsupported,
                     "the model is dense and has no experts to hold: the hub computes it alone"};
    const auto needs_newer = [](std::string_view what) {
        return Error{ErrorCode::unsupported, text("this model needs a newer worker (experts ", what,
                                                  "): reload the page, or update the program")};
    };
    if (options_.expert_shape.is_clamped() && !names(caps, clamped_cap))
        return needs_newer("with biases and a clamp");
    if (options_.expert_shape.is_mxfp4() && !names(caps, mxfp4_cap)) return needs_newer("in MXFP4");

    const Worker* ghost = worker_key.empty() ? nullptr : pool_.find_key(worker_key, worker.id);
    if (ghost == nullptr && pool_.num_welcomed() >= options_.workers_max)
        return Error{ErrorCode::overloaded,
                     text("the hub has its ", options_.workers_max, " workers; try again later")};

    const bool moves_in = ghost == nullptr || ghost->owner != worker.owner;
    if (options_.workers_per_address_max > 0 && moves_in &&
        pool_.num_welcomed_of(worker.owner) >= options_.workers_per_address_max)
        return Error{ErrorCode::overloaded,
                     text("this address lends ", options_.workers_per_address_max,
                          " workers already; the hub accepts no more from it")};
    return std::nullopt;
}

void SwarmSessions::on_hello(EventContext& context, Worker& worker, ByteView frame) {
    const Result<Hello> hello = decode_hello(frame);
    if (!hello.ok()) {
        ++counts_.bad_frames;
        refuse(context, worker, hello.error(), close_code_for(hello.error().code));
        return;
    }

    if (!worker.authorized && !(options_.token_ok && options_.token_ok(hello->token))) {
        refuse(context, worker,
               {ErrorCode::unauthorized, "the join token is not right; open the join link again"},
               CloseCode::policy);
        return;
    }

    if (hello->version_min > protocol_version || hello->version_max < protocol_version) {
        const Error error{ErrorCode::unsupported_version,
                          text("the worker speaks versions ", hello->version_min, " to ",
                               hello->version_max, ", the hub ", protocol_version)};
        refuse(context, worker, error, CloseCode::protocol_error);
        return;
    }

    worker.dtypes = dtype_bits_of(hello->dtypes);
    // wire dtype f32 is used in tests: all workers of this project accept f32
    if (options_.rounding.wire_dtype == Dtype::f32) worker.dtypes |= dtype_bits_of({Dtype::f32});

    if (!names(hello->caps, "group") || !worker.accepts(options_.rounding.wire_dtype)) {
        refuse(context, worker,
               {ErrorCode::unsupported, text("want the capability group and the dtype ",
                                             dtype_name(options_.rounding.wire_dtype))},
               CloseCode::protocol_error);
        return;
    }

    if (const auto full = no_place_for(worker, hello->worker_key, hello->caps)) {
        refuse(context, worker, *full, refusal_code(*full));
        return;
    }

    take_hello(worker, *hello);
    const auto asked = arithmetic_asked(options_);
    std::vector<std::string> caps{"budget", "held", times_cap, power_cap, slots_cap, tiers_cap};
    if (options_.spans.on) caps.insert(caps.end(), {span_cap, span_once_cap});
    FleetPlaces fleet = options_.fleet ? options_.fleet() : FleetPlaces{};

    context.send(
        worker,
        encode_welcome({.version = protocol_version,
                        .worker_id = worker.id,
                        .model_name = options_.model_name,
                        .package_sha256 = options_.package_sha256,
                        .limits = options_.limits,
                        .expert_shape = options_.expert_shape,
                        .top_k = options_.top_k,
                        .expert_blob_bytes = options_.expert_blob_bytes,
                        .dtype = options_.rounding.wire_dtype,
                        .lz4 = worker.lz4,
                        .heartbeat_ms = static_cast<std::uint32_t>(options_.heartbeat_every / 1ms),
                        .queue_depth = worker.queue_depth,
                        .caps = std::move(caps),
                        .arithmetic = asked,
                        .nonce = options_.nonce_of ? options_.nonce_of(worker.id) : "",
                        .hub = std::move(fleet.own),
                        .need = fleet.need,
                        .hubs = std::move(fleet.others)}));

    welcome(context, worker);
}

// Copies the fields of HELLO into the worker's record after admission.
void SwarmSessions::take_hello(Worker& worker, const Hello& hello) {
    worker.device = hello.device;
    worker.nickname = hello.nickname;
    worker.client = hello.client;
    worker.worker_key = hello.worker_key;
    worker.arithmetic = arithmetic_asked(options_).value_or(hello.arithmetic);
    worker.speed = hello.speed;
    worker.x_int8 = sends_x_int8(options_) && names(hello.caps, x_int8_cap);
    worker.lz4 = options_.lz4 && hello.lz4;
    worker.queue_depth = std::max(1u, options_.queue_depth);
    worker.reports_held = names(hello.caps, "held");
    worker.reads_hubs = names(hello.caps, hubs_cap);
    swarm_.spans.on_hello(worker, hello);
    pool_.set_on_demand(worker, names(hello.caps, on_demand_cap));
    if (hello.device.slot_bytes > 0)
        worker.slot_guess.set_slots(static_cast<std::uint32_t>(
            std::clamp<std::uint64_t>(hello.device.slot_bytes / options_.expert_blob_bytes, 1,
                                      std::max(1u, swarm_.placement.directory().num_units()))));
}

// Admits a peer that speaks the five published messages. Its token was in the HTTP upgrade, and its
// capabilities are in its first HEARTBEAT.
void SwarmSessions::on_published_peer(EventContext& context, Worker& worker, ByteView frame) {
    if (!worker.authorized) {
        refuse(context, worker,
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
        ++counts_.bad_frames;
        refuse(context, worker, capabilities.error(), close_code_for(capabilities.error().code));
        return;
    }

    if (const auto full = no_place_for(worker, capabilities->worker_key, {})) {
        refuse(context, worker, *full, refusal_code(*full));
        return;
    }

    worker.device = capabilities->device;
    worker.nickname = capabilities->nickname;
    worker.client = capabilities->client.empty() ? "published peer" : capabilities->client;
    worker.worker_key = capabilities->worker_key;
    worker.arithmetic = capabilities->arithmetic;
    worker.dtypes = dtype_bits_of(capabilities->dtypes) &
                    static_cast<std::uint8_t>(~(1u << static_cast<unsigned>(Dtype::f32)));

    if (!worker.accepts(options_.rounding.wire_dtype)) {
        refuse(context, worker,
               {ErrorCode::unsupported,
                text("this hub sends ", dtype_name(options_.rounding.wire_dtype),
                     ", which is not among the peer's dtypes")},
               CloseCode::protocol_error);
        return;
    }

    // no message can ask a published peer to use exact arithmetic
    if (options_.rounding.deterministic && worker.arithmetic != WorkerArithmetic::exact) {
        refuse(context, worker,
               {ErrorCode::unsupported, "this hub is deterministic and takes exact answers only"},
               CloseCode::protocol_error);
        return;
    }

    // a published peer has not announced LZ4
    worker.lz4 = false;
    // a published peer may omit its memory budget
    if (worker.device.budget_bytes == 0) worker.device.budget_bytes = 1ull << 30;
    // A published peer is sent one frame per expert, so its queue depth is set to a number of
    // rounds instead of frames. The depth is at most two rounds, because the peer may silently
    // compute cancelled requests as well.
    constexpr std::uint32_t rounds_max = 2;
    worker.queue_depth = std::clamp(options_.queue_depth, 1u, rounds_max) *
                         options_.limits.num_experts;

    welcome(context, worker);
}

void SwarmSessions::welcome(EventContext& context, Worker& worker) {
    worker.health.on(HealthEvent::welcome, context.now);
    swarm_.checks.on_welcome(worker, context.now);
    worker.joined_at = worker.heard_at = context.now;

    set_frame_limit(context, worker);
    context.event(worker, WorkerEvent::Kind::joined,
                  text("room for ", swarm_.placement.capacity_of(worker), " experts"));
    context.set_timer(context.now + options_.heartbeat_every, TimerKind::heartbeat, worker.id);

    // A worker may return before the hub has noticed that the worker's old connection is lost.
    // Remove that old connection, which is called a ghost.
    Worker* ghost = worker.worker_key.empty() ? nullptr
                                              : pool_.find_key(worker.worker_key, worker.id);
    if (ghost != nullptr) {
        const Error replaced{ErrorCode::unavailable, "a newer connection has the same worker_key"};
        if (!ghost->published_peer)
            context.send(*ghost, encode_error({.code = error_code_name(replaced.code),
                                               .found = replaced.message,
                                               .fatal = true}));
        remove_worker(context, ghost->id, WorkerEvent::Kind::left, replaced.message,
                      CloseCode::policy);
    }

    if (worker.reports_held && options_.held_wait > Duration::zero())
        context.set_timer(context.now + options_.held_wait, TimerKind::place, worker.id);
    else
        swarm_.placement.place(context, worker, {});
}

}  // namespace moex
