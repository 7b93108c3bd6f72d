// The reading half of HttpConnection: states, reading, admission, and the end. The answering half
// is in http_answer.cpp.
#include "hub/net/http_connection.h"

#include <ctime>

#include "hub/api/hub_stops.h"
#include "hub/net/fleet/fleet_proof.h"
#include "hub/net/http/request_id.h"
#include "hub/net/routes/route.h"
#include "hub/net/worker_connection.h"
#include "protocol/check.h"

namespace moex::net {
namespace {

// bytes of later requests that a client may send before it has the answer
constexpr std::size_t read_ahead_bytes_max = 64 << 10;
// bytes of a refused body that are read and dropped to keep the connection
constexpr std::uint64_t drained_body_bytes_max = 64 << 10;
constexpr std::uint64_t linger_bytes_max = 16u << 20;
constexpr Duration linger_within = 2s;

// Some routes take larger bodies than the others.
GateLimits with_routes(GateLimits limits) {
    limits.body_bytes_max_of = body_bytes_max_of;
    return limits;
}

}  // namespace

HttpConnection::HttpConnection(HubContext& hub, const Routes& routes,
                               std::unique_ptr<Transport> transport, std::string peer_address)
    : hub_(hub),
      routes_(routes),
      live_(hub.http_connections),
      transport_(std::move(transport)),
      executor_(transport_->socket().get_executor()),
      peer_address_(std::move(peer_address)),
      gate_(with_routes(hub.options.gate)),
      timer_(executor_) {}

HttpConnection::~HttpConnection() {
    release_body();
    live_->remove(live_id_);
}

const char* HttpConnection::state_name(State state) {
    switch (state) {
        case State::handshaking: return "handshaking";
        case State::reading_head: return "reading_head";
        case State::reading_body: return "reading_body";
        case State::answering: return "answering";
        case State::streaming: return "streaming";
        case State::finishing: return "finishing";
        case State::lingering: return "lingering";
        case State::handed_over: return "handed_over";
        case State::closed: return "closed";
    }
    return "unknown";
}

bool HttpConnection::may_follow(State from, State to) {
    if (to == State::closed) return from != State::closed && from != State::handed_over;
    switch (from) {
        case State::handshaking: return to == State::reading_head;
        case State::reading_head: return to == State::reading_body || to == State::answering;
        case State::reading_body: return to == State::answering;
        case State::answering:
            return to == State::streaming || to == State::finishing || to == State::handed_over;
        case State::streaming: return to == State::finishing;
        case State::finishing: return to == State::reading_head || to == State::lingering;
        case State::lingering:
        case State::handed_over:
        case State::closed: return false;
    }
    return false;
}

// Changes the state of the connection; no other function does. A new state begins without a
// deadline.
void HttpConnection::enter(State next) {
    MOEX_CHECK(may_follow(state_, next),
               text("an HTTP connection from ", state_name(state_), " to ", state_name(next)));
    state_ = next;
    deadline_.reset();
}

void HttpConnection::start() {
    live_id_ = live_->add(rate_key(peer_address_), [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->shut();
    });
    asio::dispatch(executor_, [self = shared_from_this()] {
        const Duration header_within = self->hub_.options.clients.header_within;
        self->wait_at_most(header_within);

        self->transport_->handshake([self, header_within](NetError error) {
            if (self->is_over()) return;
            if (error) return self->close();
            self->enter(State::reading_head);
            self->wait_at_most(header_within);
            self->read();
        });
    });
}

void HttpConnection::shut() {
    asio::post(executor_, [self = shared_from_this()] { self->on_shut(); });
}

void HttpConnection::on_shut() {
    const bool asked_before = std::exchange(shutting_, true);
    const bool owes_answer = state_ == State::answering || state_ == State::streaming ||
                             state_ == State::finishing;
    if (asked_before || !owes_answer) return close();

    exchange_.keep_alive = false;
    if (state_ == State::finishing) return;

    const auto handlers = std::exchange(disconnect_handlers_, {});
    respond(serial_, refusal_of(refuse_since_hub_stops()));
    give_up(handlers);
}

// Calls the disconnect handlers, which stop the work for this connection. Once the hub has detached
// the engine and the API there is no such work.
void HttpConnection::give_up(const std::vector<std::function<void()>>& handlers) {
    const std::shared_lock attached(hub_.attached_mutex);
    if (hub_.api)
        for (const auto& handler : handlers) handler();
}

void HttpConnection::read() {
    if (is_over() || read_pending_ || peer_done_) return;
    read_pending_ = true;
    transport_->read_some(asio::buffer(read_buffer_),
                          [self = shared_from_this()](NetError error, std::size_t size) {
                              self->read_pending_ = false;
                              self->on_read(error, size);
                          });
}

void HttpConnection::on_read(NetError error, std::size_t size) {
    if (is_over()) return;
    if (error)
        return on_peer_closed(error == asio::error::eof || error == ssl::error::stream_truncated);

    if (state_ == State::lingering) {
        lingered_bytes_ += size;
        if (lingered_bytes_ > linger_bytes_max) return close();
        return read();
    }

    in_.append(read_buffer_.data(), size);
    if (!is_reading() && in_.size() > read_ahead_bytes_max) return close();
    process();
    read();
}

void HttpConnection::process() {
    using Gate = RequestGate::State;
    while (is_reading() && !in_.empty()) {
        const bool was_idle = gate_.state() == Gate::idle;
        in_.erase(0, gate_.feed(in_));
        const Gate gate = gate_.state();

        if (gate == Gate::refused) return refuse(gate_.refusal());
        if (gate == Gate::head) {
            if (was_idle) wait_at_most(hub_.options.clients.header_within);
            continue;
        }

        if (state_ == State::reading_head) judge_head();
        if (!is_reading()) return;
        if (!hold_body())
            return refuse({503, "bodies_in_flight",
                           "the hub reads as many request bodies as it has memory for; try again"});
        if (gate == Gate::done) handle(gate_.take());
    }
}

void HttpConnection::begin_exchange() {
    ++serial_;
    exchange_ = {};
    exchange_.began = now_steady();
    exchange_.client_address = peer_address_;
    exchange_.secure = transport_->secure();
}

// Called when the head is complete. Adds the client's address to the request, and refuses a request
// without access.
void HttpConnection::judge_head() {
    GatedRequest& request = gate_.request();
    Client client = hub_.proxies.client_of(peer_address_, transport_->secure(), request.headers);
    if (const auto& key = hub_.options.fleet_key;
        key && is_of_fleet(*key, request.method, request.raw_target, request.headers,
                           std::time(nullptr))) {
        request.of_fleet = true;
        if (const auto forwarded = plain_address(request.header("x-forwarded-for").value_or(""))) {
            client.address = *forwarded;
            client.loopback = is_loopback_address(*forwarded);
        }
    }
    request.remote_address = std::move(client.address);
    request.loopback = client.loopback;
    request.secure = client.secure;
    request.id = request_id_of(request);

    begin_exchange();
    exchange_.id = request.id;
    exchange_.method = request.method;
    exchange_.raw_target = request.raw_target;
    exchange_.dialect = dialect_of(request);
    exchange_.client_address = request.remote_address;
    exchange_.secure = request.secure;
    exchange_.head_only = request.method == "HEAD";
    exchange_.cors_origin = routes_.cors_origin(request);

    const bool has_body = gate_.state() == RequestGate::State::body;
    Checked<Admission>& admission = exchange_.admission;
    admission = routes_.admit(request);
    if (admission.ok() && admission->is_upgrade && has_body)
        admission = Refusal{400, "an upgrade has no body", "upgrade_with_body", ""};

    enter(State::reading_body);
    wait_at_most(hub_.options.clients.body_within);
    if (!has_body) return;

    const bool waits = gate_.take_expects_continue();
    const std::uint64_t body_bytes = gate_.body_bytes_left().value_or(drained_body_bytes_max + 1);
    if (!admission.ok() && (waits || body_bytes > drained_body_bytes_max))
        return refuse_now(Refusal(admission.refusal()));

    if (!admission.ok() || request.method != "POST") gate_.drop_body();
    if (waits) push("HTTP/1.1 100 Continue\r\n\r\n");
}

// Counts the bytes of the request's body. Returns false if the bodies of all connections together
// have too many bytes.
bool HttpConnection::hold_body() {
    const std::uint64_t size = gate_.request().body.size();
    if (size <= body_bytes_held_) return true;
    if (!hub_.body_bytes.take(size - body_bytes_held_)) return false;
    body_bytes_held_ = size;
    return true;
}

void HttpConnection::release_body() { hub_.body_bytes.give(std::exchange(body_bytes_held_, 0)); }

// Refuses the request and then closes the connection: the beginning of the next request is unknown,
// or too many bytes precede it.
void HttpConnection::refuse_now(const Refusal& refusal) {
    gate_.drop_body();
    release_body();
    exchange_.keep_alive = exchange_.head_only = false;
    enter(State::answering);
    respond(serial_, refusal_of(refusal));
}

void HttpConnection::refuse(const GateRefusal& refusal) {
    if (state_ == State::reading_head) {
        begin_exchange();
        exchange_.id = make_request_id();
        exchange_.dialect = dialect_of(gate_.request());
    }
    ++hub_.requests_refused;

    Refusal answer{refusal.status, refusal.message, refusal.code, ""};
    if (refusal.status == 503) answer.headers = {{"Retry-After", "1"}};
    if (refusal.status == 405) answer.headers = {{"Allow", "GET, HEAD, POST, DELETE, OPTIONS"}};
    refuse_now(answer);
}

void HttpConnection::handle(GatedRequest request) {
    enter(State::answering);
    request.received_at = now_steady();
    exchange_.keep_alive = request.keep_alive;
    exchange_.chunked = !request.http_1_0;
    exchange_.is_counted = true;
    ++hub_.active_requests;

    const Checked<Admission>& admission = exchange_.admission;
    if (!admission.ok()) return respond(serial_, refusal_of(admission.refusal()));
    if (admission->is_upgrade) return upgrade(std::move(request));
    release_body();  // the body is complete, so its bytes no longer count
    routes_.handle(*admission, std::move(request), make_responder());
}

void HttpConnection::upgrade(GatedRequest request) {
    Checked<WorkerAdmission> worker = routes_.admit_worker(request);
    const bool has_company = read_pending_ || write_pending_ || !in_.empty();
    if (worker.ok() && has_company)
        worker = Refusal{400, "bytes around the upgrade request; it wants a connection to itself",
                         "early_data", ""};
    if (!worker.ok()) {
        exchange_.keep_alive = false;
        return respond(serial_, refusal_of(worker.refusal()));
    }

    release_request();
    exchange_.status = 101;
    log_exchange(true);
    enter(State::handed_over);
    timer_.cancel();

    const auto to_ms = [](Duration duration) {
        return std::chrono::ceil<std::chrono::milliseconds>(duration);
    };
    const ClientLimits& clients = hub_.options.clients;
    auto socket = transport_->upgrade(
        {to_ms(clients.header_within), to_ms(clients.worker_idle_within)});
    transport_.reset();
    const auto connection = std::make_shared<WorkerConnection>(
        hub_, std::move(socket), request.remote_address, request.loopback, worker->authorized);
    connection->start(std::move(request));
}

// The peer has closed its direction of the connection. If a request is being computed, this counts
// as a disconnect. A short answer may still be sent.
void HttpConnection::on_peer_closed(bool clean) {
    peer_done_ = true;
    const bool may_finish = state_ == State::finishing ||
                            (state_ == State::answering && disconnect_handlers_.empty());
    if (!clean || !may_finish) return close();
    exchange_.keep_alive = false;
}

void HttpConnection::on_answer_sent() {
    release_request();
    log_exchange(true);
    if (!exchange_.keep_alive || peer_done_) return linger();

    enter(State::reading_head);
    wait_at_most(hub_.options.clients.idle_within);
    process();
}

// Reads and drops bytes from the peer for a while before closing. Closing with unread bytes would
// reset the connection, and could destroy the answer in flight.
void HttpConnection::linger() {
    if (peer_done_) return close();
    enter(State::lingering);
    in_.clear();
    wait_at_most(linger_within);
    transport_->finish_writing([self = shared_from_this()] {});
    read();
}

void HttpConnection::release_request() {
    if (std::exchange(exchange_.is_counted, false)) --hub_.active_requests;
}

void HttpConnection::log_exchange(bool whole) {
    if (exchange_.id.empty() || std::exchange(exchange_.is_logged, true)) return;
    const Checked<Admission>& admission = exchange_.admission;
    const bool has_key = admission.ok() && admission->key;
    hub_.access_log.write({.method = exchange_.method,
                           .raw_target = exchange_.raw_target,
                           .status = exchange_.status,
                           .body_bytes = exchange_.body_bytes,
                           .took = now_steady() - exchange_.began,
                           .whole = whole,
                           .id = exchange_.id,
                           .peer_address = exchange_.client_address,
                           .key_id = has_key ? admission->key->id : std::string_view()});
}

void HttpConnection::close() {
    if (is_over()) return;
    enter(State::closed);
    log_exchange(false);  // writes the request in progress, if any, to the access log

    gate_.drop_body();
    release_body();
    release_request();
    timer_.cancel();
    transport_->close();
    give_up(std::exchange(disconnect_handlers_, {}));
    outbox_.clear();
    live_->remove(live_id_);
}

void HttpConnection::wait_at_most(Duration duration) {
    deadline_ = now_steady() + duration;
    arm_timer();
}

// Sets the one timer that serves both deadlines. It expires at the earlier deadline, and is reset
// only to an earlier time.
void HttpConnection::arm_timer() {
    if (is_over()) return;
    std::optional<TimePoint> next = deadline_;
    if (write_deadline_ && (!next || *write_deadline_ < *next)) next = write_deadline_;
    if (!next || (timer_at_ && *timer_at_ <= *next)) return;

    timer_at_ = next;
    timer_.expires_at(*next);
    timer_.async_wait([self = shared_from_this()](NetError error) {
        if (error || self->is_over()) return;
        self->timer_at_.reset();
        self->on_timer();
    });
}

void HttpConnection::on_timer() {
    const TimePoint now = now_steady();
    if (write_deadline_ && now >= *write_deadline_) return close();
    if (deadline_ && now >= *deadline_) on_deadline();
    arm_timer();
}

void HttpConnection::on_deadline() {
    const bool is_idle = gate_.state() == RequestGate::State::idle;
    switch (state_) {
        case State::reading_head:
        case State::reading_body:
            // At a timeout a client that has sent part of a request gets an answer, and an idle
            // connection is closed.
            if (is_idle) return close();
            return refuse({408, "request_timeout", "the request did not arrive in time"});
        case State::answering: begin_stream(serial_); [[fallthrough]];
        case State::streaming:
            push_ping();
            if (state_ == State::streaming) wait_at_most(hub_.options.clients.ping_every);
            return;
        case State::handshaking:
        case State::lingering: return close();
        case State::finishing:
        case State::handed_over:
        case State::closed: break;
    }
    MOEX_CHECK(false, text("a deadline in state ", state_name(state_)));
}

}  // namespace moex::net
