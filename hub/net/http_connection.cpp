#include "hub/net/http_connection.h"

#include "hub/net/worker_connection.h"

namespace moex::net {
namespace {

// sent before the answer of the request in progress
constexpr std::size_t read_ahead_bytes_max = 64 << 10;
// a refused request's body: read past for the sake of the connection
constexpr std::uint64_t drained_body_bytes_max = 64 << 10;
constexpr std::uint64_t linger_bytes_max = 16u << 20;
constexpr Duration linger_within = 2s;

}  // namespace

HttpConnection::HttpConnection(HubContext& hub, const Routes& routes,
                               std::unique_ptr<Transport> transport, std::string peer_address)
    : hub_(hub),
      routes_(routes),
      live_(hub.http_connections),
      transport_(std::move(transport)),
      executor_(transport_->socket().get_executor()),
      peer_address_(std::move(peer_address)),
      secure_(transport_->secure()),
      gate_(hub.options.gate),
      timer_(executor_) {}

HttpConnection::~HttpConnection() {
    release_body();
    live_->remove(live_id_);
}

void HttpConnection::start() {
    live_id_ = live_->add(rate_key(peer_address_), [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->shut();
    });
    asio::dispatch(executor_, [self = shared_from_this()] {
        self->read_deadline_ = now_steady() + self->hub_.options.clients.header_within;
        self->arm_timer();
        self->transport_->handshake([self](NetError error) {
            if (error) return self->close();
            self->read();
        });
    });
}

void HttpConnection::shut() {
    asio::post(executor_, [self = shared_from_this()] { self->on_shut(); });
}

void HttpConnection::on_shut() {
    if (std::exchange(shutting_, true) || !busy_ || lingering_) return close();
    keep_alive_ = false;
    if (answered_ || closed_) return;  // its last bytes are on their way
    auto handlers = std::exchange(disconnect_handlers_, {});
    respond(serial_,
            api_error(503, "the hub stopped before this answer was complete", "shutting_down"), {},
            nullptr);
    give_up(std::move(handlers));
}

// Whoever computes for this connection stops; nobody
// does any more once the hub has let go of its rooms.
void HttpConnection::give_up(std::vector<std::function<void()>> handlers) {
    const std::shared_lock rooms(hub_.attached_mutex);
    if (hub_.api)
        for (const auto& handler : handlers) handler();
}

void HttpConnection::read() {
    if (closed_ || reading_ || peer_done_) return;
    reading_ = true;
    transport_->read_some(asio::buffer(read_buffer_),
                          [self = shared_from_this()](NetError error, std::size_t size) {
                              self->reading_ = false;
                              self->on_read(error, size);
                          });
}

void HttpConnection::on_read(NetError error, std::size_t size) {
    if (closed_) return;
    if (error)
        return on_peer_closed(error == asio::error::eof || error == ssl::error::stream_truncated);
    if (lingering_) {
        lingered_bytes_ += size;
        if (lingered_bytes_ > linger_bytes_max) return close();
        return read();
    }
    in_.append(read_buffer_.data(), size);
    if (busy_ && in_.size() > read_ahead_bytes_max) return close();
    process();
    if (transport_) read();
}

void HttpConnection::process() {
    while (!busy_ && !closed_ && !lingering_ && transport_ && !in_.empty()) {
        const RequestGate::State before = gate_.state();
        in_.erase(0, gate_.feed(in_));
        const RequestGate::State after = gate_.state();
        const ClientLimits& limits = hub_.options.clients;
        if (after == RequestGate::State::refused) return refuse(gate_.refusal());
        if (before == RequestGate::State::idle && after == RequestGate::State::head)
            read_deadline_ = now_steady() + limits.header_within;
        const bool had_head = before == RequestGate::State::body,
                   has_head = after == RequestGate::State::body ||
                              after == RequestGate::State::done;
        if (!had_head && has_head) judge_head();
        if (busy_) return;
        if (has_head && !hold_body())
            return refuse({503, "bodies_in_flight",
                           "the hub reads as many request bodies as it has memory for; try again"});
        if (after == RequestGate::State::done) handle(gate_.take());
        arm_timer();
    }
}

HttpRequest HttpConnection::view_of(const GatedRequest& request) const {
    HttpRequest view;
    view.method = request.method;
    view.path = request.path;
    view.query = request.query;
    view.headers = request.headers;
    Client client = hub_.proxies.client_of(peer_address_, transport_->secure(), request.headers);
    view.remote_address = std::move(client.address);
    view.loopback = client.loopback;
    view.secure = client.secure;
    view.received_at = now_steady();
    return view;
}

void HttpConnection::judge_head() {
    const HttpRequest view = view_of(gate_.request());
    cors_origin_ = routes_.cors_origin(view);
    secure_ = view.secure;
    head_refusal_.reset();
    if (!routes_.is_upgrade(view)) head_refusal_ = routes_.refuse_by_head(view);
    if (gate_.state() == RequestGate::State::done) return;
    read_deadline_ = now_steady() + hub_.options.clients.body_within;
    const bool waits = gate_.take_expects_continue();
    if (head_refusal_ && (waits || gate_.body_bytes_left().value_or(drained_body_bytes_max + 1) >
                                       drained_body_bytes_max)) {
        ++serial_;
        busy_ = true;
        answered_ = head_only_ = keep_alive_ = false;
        return respond(serial_, *std::exchange(head_refusal_, std::nullopt), {}, nullptr);
    }
    if (head_refusal_ || view.method != "POST") gate_.drop_body();
    if (waits) push("HTTP/1.1 100 Continue\r\n\r\n");
}

// Counts what has come of the body; false when all connections together hold too much.
bool HttpConnection::hold_body() {
    const std::uint64_t size = gate_.request().body.size();
    if (size <= body_bytes_held_) return true;
    if (!hub_.body_bytes.take(size - body_bytes_held_)) return false;
    body_bytes_held_ = size;
    return true;
}

void HttpConnection::release_body() { hub_.body_bytes.give(std::exchange(body_bytes_held_, 0)); }

void HttpConnection::refuse(const GateRefusal& refusal) {
    gate_.drop_body();
    release_body();
    // of the request before
    if (gate_.state() == RequestGate::State::refused) cors_origin_.clear();
    ++hub_.requests_refused;
    ++serial_;
    busy_ = true;
    answered_ = head_only_ = keep_alive_ = false;
    HttpResponse response = api_error(refusal.status, refusal.message, refusal.code);
    if (refusal.status == 503) response.headers.emplace_back("Retry-After", "1");
    if (refusal.status == 405) response.headers.emplace_back("Allow", "GET, HEAD, POST, OPTIONS");
    respond(serial_, std::move(response), {}, nullptr);
}

void HttpConnection::handle(GatedRequest request) {
    ++serial_;
    busy_ = true;
    answered_ = streaming_ = expects_stream_ = false;
    head_only_ = request.method == "HEAD";
    keep_alive_ = request.keep_alive;
    chunked_ = !request.http_1_0;
    read_deadline_.reset();
    counted_ = true;
    ++hub_.active_requests;

    HttpRequest view = view_of(request);
    if (head_refusal_)
        return respond(serial_, *std::exchange(head_refusal_, std::nullopt), {}, nullptr);
    if (routes_.is_upgrade(view)) return upgrade(std::move(request), view);
    view.body = std::move(request.body);
    routes_.handle(std::move(view), make_responder());
    release_body();
}

void HttpConnection::upgrade(GatedRequest request, const HttpRequest& view) {
    UpgradeVerdict verdict = routes_.judge_upgrade(view);
    if (!verdict.refusal && (reading_ || writing_ || !in_.empty()))
        verdict.refusal = api_error(
            400, "bytes around the upgrade request; it wants a connection to itself", "early_data");
    if (verdict.refusal) {
        keep_alive_ = false;
        return respond(serial_, std::move(*verdict.refusal), {}, nullptr);
    }
    timer_.cancel();
    timer_at_.reset();
    release_request();
    const auto to_ms = [](Duration duration) {
        return std::chrono::ceil<std::chrono::milliseconds>(duration);
    };
    WebSocketLimits limits{to_ms(hub_.options.clients.header_within),
                           to_ms(hub_.options.clients.worker_idle_within)};
    auto socket = transport_->upgrade(limits);
    transport_.reset();
    closed_ = true;
    std::make_shared<WorkerConnection>(hub_, std::move(socket), view.remote_address, view.loopback,
                                       verdict.authorized)
        ->start(std::move(request));
}

// A clean end of the peer's bytes in the middle of a request is a
// hang-up when someone computes for it; a short answer may still go out.
void HttpConnection::on_peer_closed(bool clean) {
    peer_done_ = true;
    if (!clean || lingering_ || (!busy_ && outbox_.empty() && !writing_) || streaming_ ||
        !disconnect_handlers_.empty())
        return close();
    keep_alive_ = false;
    if (!busy_) close();
}

void HttpConnection::on_answer_sent() {
    release_request();
    busy_ = streaming_ = false;
    if (!keep_alive_ || peer_done_) return linger();
    read_deadline_ = now_steady() + hub_.options.clients.idle_within;
    arm_timer();
    process();
}

// Closing with unread bytes would reset the connection and
// may destroy the answer on its way: read them, for a while.
void HttpConnection::linger() {
    if (closed_ || lingering_) return;
    if (peer_done_) return close();
    lingering_ = true;
    in_.clear();
    read_deadline_ = now_steady() + linger_within;
    arm_timer();
    transport_->finish_writing([self = shared_from_this()] {});
    read();
}

void HttpConnection::release_request() {
    if (!counted_) return;
    counted_ = false;
    --hub_.active_requests;
}

void HttpConnection::close() {
    if (closed_) return;
    closed_ = true;
    gate_.drop_body();
    release_body();
    release_request();
    timer_.cancel();
    if (transport_) transport_->close();
    give_up(std::exchange(disconnect_handlers_, {}));
    outbox_.clear();
    live_->remove(live_id_);
}

// One timer for all deadlines: set to the next one, and only moved when an earlier one comes.
void HttpConnection::arm_timer() {
    if (closed_) return;
    std::optional<TimePoint> next;
    for (const auto& deadline : {read_deadline_, write_deadline_, ping_at_})
        if (deadline && (!next || *deadline < *next)) next = deadline;
    if (!next || (timer_at_ && *timer_at_ <= *next)) return;
    timer_at_ = next;
    timer_.expires_at(*next);
    timer_.async_wait([self = shared_from_this()](NetError error) {
        if (error || self->closed_) return;
        self->timer_at_.reset();
        self->on_timer();
    });
}

void HttpConnection::on_timer() {
    const TimePoint now = now_steady();
    if (write_deadline_ && now >= *write_deadline_) return close();
    if (read_deadline_ && now >= *read_deadline_) {
        read_deadline_.reset();
        // Inside a request the client is told; an idle or lingering connection just ends.
        if (lingering_ || gate_.state() == RequestGate::State::idle || busy_) return close();
        return refuse({408, "request_timeout", "the request did not arrive in time"});
    }
    if (ping_at_ && now >= *ping_at_) {
        if (!streaming_) begin_stream(serial_);
        ping_at_ = now + hub_.options.clients.ping_every;
        push_chunk(": ping\n\n");
    }
    arm_timer();
}

}  // namespace moex::net
