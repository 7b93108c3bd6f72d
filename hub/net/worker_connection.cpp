#include "hub/net/worker_connection.h"

#include "hub/base/log.h"
#include "hub/base/signing_key.h"

namespace moex::net {
namespace {

constexpr Duration close_within = 2s;
// The most IDENTITY frames of one connection. A contributor may choose another identity several
// times, and verifying a signature takes 0.1 ms.
constexpr std::uint32_t identities_max = 64;

bool is_identity(ByteView frame) {
    const auto header = decode_frame_header(frame);
    return header.ok() && header->type == FrameType::identity;
}

}  // namespace

WorkerConnection::WorkerConnection(HubContext& hub, std::unique_ptr<WebSocket> socket,
                                   std::string address, bool loopback, bool authorized)
    : hub_(hub),
      live_(hub.worker_connections),
      socket_(std::move(socket)),
      executor_(socket_->executor()),
      address_(std::move(address)),
      loopback_(loopback),
      authorized_(authorized),
      close_timer_(executor_) {}

WorkerConnection::~WorkerConnection() { live_->remove(live_id_); }

void WorkerConnection::start(const GatedRequest& request) {
    origin_ = own_origin(request);
    live_id_ = live_->add(rate_key(address_), [weak = weak_from_this()] {
        if (const auto self = weak.lock())
            self->close(CloseCode::going_away, "the hub stops; try again in 2 s");
    });
    socket_->set_read_limit(unauthenticated_frame_bytes_max);
    socket_->accept(request, [self = shared_from_this()](NetError error) {
        if (error) return self->end();
        self->accepted_ = true;
        if (self->closing_) return self->write_next();
        self->on_accepted();
    });
}

void WorkerConnection::on_accepted() {
    asio::post(hub_.swarm_strand, [self = shared_from_this()] {
        HubContext& hub = self->hub_;
        SwarmBackend* swarm = hub.swarm;
        if (!swarm)
            return self->close(CloseCode::going_away, "the hub is not ready; try again in 2 s");

        self->joined_ = true;
        self->id_ = swarm->on_connect(self, self->address_, self->authorized_);
        asio::post(self->executor_, [self, answers = swarm->core().answer_reader(self->id_)] {
            self->answers_.emplace(answers);
            self->read_next();
        });
    });
}

void WorkerConnection::set_frame_limit(std::uint64_t bytes) {
    asio::post(executor_, [self = shared_from_this(), bytes] {
        if (!self->ended_) self->socket_->set_read_limit(bytes);
    });
}

void WorkerConnection::read_next() {
    if (ended_ || close_sent_) return;
    socket_->read([self = shared_from_this()](NetError error, Bytes frame, bool binary) {
        self->on_read(error, std::move(frame), binary);
    });
}

void WorkerConnection::on_read(NetError error, Bytes frame, bool binary) {
    if (error) {
        // If the peer broke the rules of WebSocket, the WebSocket layer has already sent close code
        // 1002 or 1009.
        if (error != websocket::error::closed &&
            error.category() == NetError(websocket::error::closed).category()) {
            if (welcomed_)
                hub_.metrics.on_ejection(error == websocket::error::message_too_big
                                             ? CloseCode::too_big
                                             : CloseCode::protocol_error);
            else
                hub_.rates.hello_failed(now_steady(), address_, loopback_);
        }
        return end();
    }

    if (!binary) {
        if (welcomed_) hub_.metrics.on_ejection(CloseCode::text_frame);
        return close(CloseCode::text_frame, "frames are binary messages");
    }

    if (welcomed_ && is_identity(frame)) return on_identity(frame);

    // `id_` was set before the first frame was read.
    if (Trace::on() != nullptr) rounds_.received(id_, frame);

    to_swarm(std::move(frame));
}

// Decodes requested answers on the connection's thread, because decoding rows takes time and all
// workers share the strand of the swarm.
void WorkerConnection::to_swarm(Bytes frame) {
    std::optional<WorkerAnswer> answer;
    if (welcomed_) answer = answers_->read(frame);
    if (answer) frame = {};

    asio::post(hub_.swarm_strand, [self = shared_from_this(), frame = std::move(frame),
                                   answer = std::move(answer)]() mutable {
        SwarmBackend* swarm = self->hub_.swarm;
        if (!swarm || !self->joined_) return;

        const TraceSpan span(Trace::Row::strand, "frame", {"worker", self->id_});
        if (answer) {
            swarm->on_answer(self->id_, *std::move(answer));
        } else {
            swarm->on_frame(self->id_, frame);
            if (swarm->core().welcomed(self->id_)) self->welcomed_ = true;
            if (Trace::on() != nullptr) self->trace_on_demand(frame);
        }

        asio::post(self->executor_, [self] { self->read_next(); });
    });
}

// Called on the swarm strand, after the swarm has read a frame of this worker.
void WorkerConnection::trace_on_demand(ByteView frame) {
    const auto worker = hub_.swarm.load()->core().worker(id_);
    if (!worker) return;
    const EngineCounters engine = hub_.engine ? hub_.engine.load()->counters() : EngineCounters{};
    const std::uint64_t tokens = engine.prompt_tokens + engine.generated_tokens;
    on_demand_.received(frame, *worker, hub_.package->expert_blob_bytes(),
                        tokens - std::min(tokens, engine.cached_tokens));
}

// Handles IDENTITY here. The contributor of a worker does not matter to the swarm, so the frame is
// not passed on.
void WorkerConnection::on_identity(ByteView frame) {
    const Result<Identity> identity = decode_identity(frame);
    if (!identity.ok() || ++identities_ > identities_max) {
        const Error error = identity.ok()
                                ? Error{ErrorCode::bad_field,
                                        text("more than ", identities_max, " times IDENTITY")}
                                : identity.error();
        hub_.metrics.on_ejection(CloseCode::protocol_error);
        send(encode_error(
            {.code = error_code_name(error.code), .found = error.message, .fatal = true}));
        return close(CloseCode::protocol_error, error.message);
    }

    const std::string signed_text = identity_text(hub_.registry.nonces().for_worker(id_), origin_,
                                                  id_);
    if (signature_fits(identity->public_key, identity->signature, signed_text)) {
        asio::post(hub_.swarm_strand, [self = shared_from_this(), identity = *identity] {
            self->hub_.contributors.identified(self->id_, identity);
        });
    } else {
        send(encode_error({.code = error_code_name(ErrorCode::unauthorized),
                           .field = "identity",
                           .found = text("a signature that is not of this connection at ", origin_),
                           .fatal = false}));
    }
    read_next();
}

void WorkerConnection::send(WireFrame frame) {
    if (outbox_bytes_ + frame.size_bytes() > hub_.options.clients.worker_outbox_bytes_max) {
        log_warn("worker: reads too slowly, closed", kv("waiting_bytes", outbox_bytes_.load()));
        asio::post(executor_, [self = shared_from_this()] { self->end(); });
        return;
    }

    outbox_bytes_ += frame.size_bytes();
    Outgoing next{.frame = std::move(frame)};
    if (Trace::on() != nullptr) next.queued_at = now_steady();
    asio::post(executor_, [self = shared_from_this(), next = std::move(next)]() mutable {
        if (self->ended_ || self->closing_) return;
        self->outbox_.push_back(std::move(next));
        self->write_next();
    });
}

void WorkerConnection::write_next() {
    if (writing_ || ended_ || !accepted_) return;
    if (outbox_.empty()) {
        if (closing_) finish_close();
        return;
    }

    writing_ = true;
    const Outgoing& first = outbox_.front();
    if (Trace::on() != nullptr)
        rounds_.sent(first.frame.head(), first.frame.size_bytes(), first.queued_at);
    writing_parts_.clear();
    first.frame.append_spans(writing_parts_);
    socket_->write(writing_parts_, [self = shared_from_this()](NetError error) {
        self->writing_ = false;
        self->outbox_bytes_ -= self->outbox_.front().frame.size_bytes();
        self->outbox_.pop_front();
        if (error) return self->end();
        self->write_next();
    });
}

void WorkerConnection::close(CloseCode code, const std::string& reason) {
    if (!welcomed_ && code != CloseCode::going_away)
        hub_.rates.hello_failed(now_steady(), address_, loopback_);
    asio::post(executor_,
               [self = shared_from_this(), code, reason] { self->begin_close(code, reason); });
}

// Sends the waiting frames first (DRAIN, an ERROR with the reason), then the close frame. A peer
// that does not answer the close frame is disconnected. Until the answer to the upgrade request has
// been written, nothing else may be written.
void WorkerConnection::begin_close(CloseCode code, const std::string& reason) {
    if (closing_ || ended_) return;
    closing_ = true;
    close_code_ = code;
    close_reason_ = reason;

    close_timer_.expires_after(close_within);
    close_timer_.async_wait([self = shared_from_this()](NetError error) {
        if (!error) self->end();
    });
    write_next();
}

void WorkerConnection::finish_close() {
    if (close_sent_) return;
    close_sent_ = true;
    socket_->close(static_cast<std::uint16_t>(close_code_), close_reason_,
                   [self = shared_from_this()](NetError) { self->end(); });
}

void WorkerConnection::end() {
    if (ended_) return;
    ended_ = true;
    close_timer_.cancel();
    socket_->abort();

    asio::post(hub_.swarm_strand, [self = shared_from_this()] {
        HubContext& hub = self->hub_;
        if (!self->joined_) return;
        self->joined_ = false;
        if (SwarmBackend* swarm = hub.swarm) swarm->on_disconnect(self->id_);
    });
}

}  // namespace moex::net
