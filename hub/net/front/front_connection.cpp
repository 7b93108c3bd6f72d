#include "hub/net/front/front_connection.h"

#include "hub/net/http/request_id.h"

namespace moex::net {
namespace {

constexpr Duration handshake_within = std::chrono::seconds(10),
                   idle_within = std::chrono::seconds(75);
constexpr std::size_t read_ahead_bytes_max = 64 << 10, write_bytes_max = 64 << 10;

}  // namespace

FrontConnection::FrontConnection(FrontContext& front, ClientLine::Strand strand,
                                 std::unique_ptr<Transport> transport, std::string peer_address)
    : front_(front),
      strand_(std::move(strand)),
      transport_(std::move(transport)),
      peer_address_(std::move(peer_address)),
      gate_(front.gate),
      timer_(strand_),
      unread_timer_(strand_) {
    ++front_.connections;
}

FrontConnection::~FrontConnection() {
    release_body();
    --front_.connections;
}

bool FrontConnection::hold_body() {
    const std::uint64_t size = gate_.request().body.size();
    if (size <= body_bytes_held_) return true;
    if (!front_.body_bytes.take(size - body_bytes_held_)) return false;
    body_bytes_held_ = size;
    return true;
}

void FrontConnection::release_body() { front_.body_bytes.give(std::exchange(body_bytes_held_, 0)); }

void FrontConnection::start() {
    asio::dispatch(strand_, [self = shared_from_this()] {
        self->wait_at_most(handshake_within);
        self->transport_->handshake([self](NetError error) {
            if (self->closed_) return;
            if (error) return self->close();
            self->wait_at_most(idle_within);
            self->read();
        });
    });
}

void FrontConnection::read() {
    if (closed_) return;
    transport_->read_some(asio::buffer(buffer_),
                          [self = shared_from_this()](NetError error, std::size_t size) {
                              if (!self->closed_) self->on_read(error, size);
                          });
}

void FrontConnection::on_read(NetError error, std::size_t size) {
    if (error) return close();
    in_.append(buffer_.data(), size);
    if (closes_) in_.clear();  // what a refused client still sends
    if (exchange_ && in_.size() > read_ahead_bytes_max) return close();
    process();
    read();
}

void FrontConnection::process() {
    using Gate = RequestGate::State;
    while (!closed_ && !closes_ && !exchange_ && !in_.empty()) {
        in_.erase(0, gate_.feed(in_));
        const Gate gate = gate_.state();
        if (gate == Gate::refused) {
            const GateRefusal& refusal = gate_.refusal();
            closes_ = true;
            return answer(refusal.status, refusal.code, refusal.message);
        }
        if ((gate == Gate::body || gate == Gate::done) && !hold_body()) {
            closes_ = true;
            release_body();
            return answer(503, "bodies_in_flight",
                          "the front holds as many request bodies as it has memory for "
                          "(--request-memory-mb); try again");
        }
        if (gate == Gate::body && gate_.take_expects_continue())
            send("HTTP/1.1 100 Continue\r\n\r\n");
        if (gate == Gate::done) handle(gate_.take());
    }
}

void FrontConnection::handle(GatedRequest request) {
    timer_.cancel();
    const Client client = front_.proxies.client_of(peer_address_, false, request.headers);
    // A hub must not take a client for its own machine because a proxy did not name it.
    const bool is_unnamed = !client.loopback && is_loopback_address(client.address);
    request.remote_address = is_unnamed ? "0.0.0.0" : client.address;
    if (request.path == "/worker" || request.header("upgrade")) {
        closes_ = true;
        return answer(501, "not_supported",
                      "a front has no WebSocket: workers connect to a hub of the fleet");
    }
    const std::weak_ptr<FrontConnection> weak = weak_from_this();
    exchange_ = std::make_shared<FrontExchange>(
        front_, strand_, std::move(request),
        FrontExchange::Client{.send =
                                  [weak](std::string bytes) {
                                      if (const auto self = weak.lock())
                                          self->send(std::move(bytes));
                                  },
                              .end =
                                  [weak](bool keep_alive) {
                                      if (const auto self = weak.lock())
                                          self->on_answer_end(keep_alive);
                                  },
                              .waiting_bytes =
                                  [weak] {
                                      const auto self = weak.lock();
                                      return self ? self->outbox_bytes_ : std::size_t{0};
                                  }});
    exchange_->start();
}

void FrontConnection::answer(unsigned status, std::string_view code, std::string_view message) {
    const HttpResponse response = refusal_response(
        {status, std::string(message), std::string(code), ""});
    send(text("HTTP/1.1 ", status, ' ', reason_phrase(status), "\r\ncontent-type: ",
              response.content_type, "\r\ncontent-length: ", response.body.size(),
              "\r\nconnection: close\r\n\r\n", response.body));
}

void FrontConnection::send(std::string bytes) {
    if (closed_ || bytes.empty()) return;
    outbox_bytes_ += bytes.size();
    outbox_.push_back(std::move(bytes));
    write();
}

void FrontConnection::write() {
    if (writing_ || closed_ || outbox_.empty()) return;
    writing_ = true;
    unread_timer_.expires_after(front_.unread_within);
    unread_timer_.async_wait([self = shared_from_this()](NetError error) {
        if (!error) self->close();
    });
    // In pieces, so that a client that reads a large answer slowly is seen to read.
    const std::size_t size = std::min(outbox_.front().size() - written_, write_bytes_max);
    transport_->write({asio::buffer(outbox_.front().data() + written_, size)},
                      [self = shared_from_this(), size](NetError error) {
                          self->writing_ = false;
                          self->written_ += size;
                          if (!self->closed_) self->on_written(error);
                      });
}

void FrontConnection::on_written(NetError error) {
    unread_timer_.cancel();
    if (error) return close();
    if (written_ < outbox_.front().size()) return write();
    written_ = 0;
    outbox_bytes_ -= outbox_.front().size();
    outbox_.pop_front();
    if (outbox_.empty() && closes_) {
        // Let the client read the answer before the connection ends.
        transport_->finish_writing([] {});
        return wait_at_most(std::chrono::seconds(2));
    }
    if (exchange_) exchange_->on_drained();
    write();
}

// The exchange calls this at its end, from within its own functions.
void FrontConnection::on_answer_end(bool keep_alive) {
    asio::post(strand_, [self = shared_from_this(), keep_alive] {
        self->exchange_.reset();
        self->release_body();
        if (self->closed_) return;
        self->closes_ = !keep_alive;
        self->wait_at_most(idle_within);
        if (self->closes_ && self->outbox_.empty()) return self->close();
        self->process();
    });
}

void FrontConnection::close() {
    if (std::exchange(closed_, true)) return;
    timer_.cancel();
    unread_timer_.cancel();
    transport_->close();
    if (exchange_) std::exchange(exchange_, nullptr)->abandon();
    release_body();
}

void FrontConnection::wait_at_most(Duration duration) {
    timer_.expires_after(duration);
    timer_.async_wait([self = shared_from_this()](NetError error) {
        if (!error && !self->exchange_) self->close();
    });
}

}  // namespace moex::net
