// The way back of HttpConnection: what handlers hold, heads, streams of events, writing.
#include <ctime>

#include "hub/base/log.h"
#include "hub/net/http_connection.h"

namespace moex::net {
namespace {

constexpr std::size_t write_bytes_max = 256 << 10;

std::string http_date() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char buffer[40];
    return std::string(buffer,
                       std::strftime(buffer, sizeof buffer, "%a, %d %b %Y %H:%M:%S GMT", &parts));
}

}  // namespace

// What the handlers hold. Any thread; everything is posted to the connection's strand.
class ConnectionResponder : public WireResponder {
  public:
    ConnectionResponder(std::shared_ptr<HttpConnection> connection, std::uint64_t serial)
        : connection_(std::move(connection)),
          serial_(serial) {}
    ~ConnectionResponder() override {
        if (!done_)
            post([serial = serial_](HttpConnection& connection) {
                connection.drop_request(serial);
            });
    }
    void respond(HttpResponse response) override {
        respond_bytes(std::move(response), {}, nullptr);
    }
    void respond_bytes(HttpResponse head, ByteView bytes,
                       std::shared_ptr<const void> keep) override {
        if (done_.exchange(true)) return;
        post([serial = serial_, head = std::move(head), bytes,
              keep = std::move(keep)](HttpConnection& connection) mutable {
            connection.respond(serial, std::move(head), bytes, std::move(keep));
        });
    }
    void begin_stream() override {
        post([serial = serial_](HttpConnection& connection) { connection.begin_stream(serial); });
    }
    void expect_stream() override {
        post([serial = serial_](HttpConnection& connection) { connection.expect_stream(serial); });
    }
    void send_event(std::string data) override {
        post([serial = serial_, data = std::move(data)](HttpConnection& connection) mutable {
            connection.send_event(serial, std::move(data));
        });
    }
    void end_stream() override {
        if (done_.exchange(true)) return;
        post([serial = serial_](HttpConnection& connection) { connection.end_stream(serial); });
    }
    void on_disconnect(std::function<void()> handler) override {
        post([serial = serial_, handler = std::move(handler)](HttpConnection& connection) mutable {
            connection.watch_disconnect(serial, std::move(handler));
        });
    }

  private:
    template <class Function>
    void post(Function function) {
        asio::post(connection_->executor_,
                   [connection = connection_, function = std::move(function)]() mutable {
                       function(*connection);
                   });
    }
    const std::shared_ptr<HttpConnection> connection_;
    const std::uint64_t serial_;
    std::atomic<bool> done_{false};
};

std::shared_ptr<WireResponder> HttpConnection::make_responder() {
    return std::make_shared<ConnectionResponder>(shared_from_this(), serial_);
}

void HttpConnection::watch_disconnect(std::uint64_t serial, std::function<void()> handler) {
    if (closed_ || shutting_ || serial != serial_ || peer_done_)
        return give_up({std::move(handler)});
    if (!answered_) disconnect_handlers_.push_back(std::move(handler));
}

std::string HttpConnection::head_of(const HttpResponse& response,
                                    std::optional<std::uint64_t> body_bytes) {
    std::string head = text("HTTP/1.1 ", response.status, ' ', reason_phrase(response.status),
                            "\r\nDate: ", http_date(), "\r\n");
    const auto add = [&](std::string_view name, std::string_view value) {
        head += name;
        head += ": ";
        // no value, whatever it quotes, opens a line of its own
        for (const char c : value) head += c == '\r' || c == '\n' ? ' ' : c;
        head += "\r\n";
    };
    bool has_cache_rule = false;
    for (const auto& [name, value] : response.headers) {
        add(name, value);
        has_cache_rule |= name == "Cache-Control";
    }
    if (!response.content_type.empty() && response.status != 204 && response.status != 304)
        add("Content-Type", response.content_type);
    if (!has_cache_rule) add("Cache-Control", "no-store");
    add("X-Content-Type-Options", "nosniff");
    add("Referrer-Policy", "no-referrer");
    add("Cross-Origin-Resource-Policy", "same-origin");
    if (secure_) add("Strict-Transport-Security", "max-age=31536000");
    if (!hub_.options.cors_origins.empty()) add("Vary", "Origin");
    if (!cors_origin_.empty()) {
        add("Access-Control-Allow-Origin", cors_origin_);
        add("Access-Control-Expose-Headers", "Retry-After, ETag, Content-Range");
    }
    if (body_bytes && response.status != 204 && response.status != 304)
        add("Content-Length", text(*body_bytes));
    add("Connection", keep_alive_ ? "keep-alive" : "close");
    return head;
}

void HttpConnection::respond(std::uint64_t serial, HttpResponse response, ByteView bytes,
                             std::shared_ptr<const void> keep) {
    if (closed_ || serial != serial_ || answered_) return;
    // the headers went out while it was waited for
    if (streaming_ && expects_stream_) {
        send_event(serial, std::move(response.body));
        return end_stream(serial);
    }
    if (streaming_) return;
    answered_ = true;
    ping_at_.reset();
    disconnect_handlers_.clear();
    if (hub_.draining) keep_alive_ = false;
    hub_.metrics.on_http(response.status);
    const std::uint64_t size = bytes.empty() ? response.body.size() : bytes.size();
    std::string out = head_of(response, size) + "\r\n";
    const bool has_body = !head_only_ && response.status != 204 && response.status != 304;
    if (has_body && bytes.empty()) out += response.body;
    push(std::move(out));
    if (has_body && !bytes.empty()) outbox_.push_back({{}, bytes, std::move(keep)});
    write();
}

void HttpConnection::begin_stream(std::uint64_t serial) {
    if (closed_ || serial != serial_ || answered_ || streaming_) return;
    streaming_ = true;
    HttpResponse response;
    response.content_type = "text/event-stream; charset=utf-8";
    response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    if (!chunked_ || hub_.draining) keep_alive_ = false;
    if (chunked_) response.headers.emplace_back("Transfer-Encoding", "chunked");
    hub_.metrics.on_http(200);
    ping_at_ = now_steady() + hub_.options.clients.ping_every;
    push(head_of(response, std::nullopt) + "\r\n");
    arm_timer();
}

void HttpConnection::expect_stream(std::uint64_t serial) {
    if (closed_ || serial != serial_ || answered_ || streaming_) return;
    expects_stream_ = true;
    ping_at_ = now_steady() + hub_.options.clients.ping_every;
    arm_timer();
}

void HttpConnection::push_chunk(std::string_view data) {
    if (head_only_) return;
    if (!chunked_) return push(std::string(data));
    char size[24];
    const int length = std::snprintf(size, sizeof size, "%zx\r\n", data.size());
    std::string chunk(size, static_cast<std::size_t>(length));
    chunk.append(data).append("\r\n");
    push(std::move(chunk));
}

void HttpConnection::send_event(std::uint64_t serial, std::string data) {
    if (closed_ || serial != serial_ || answered_ || !streaming_) return;
    push_chunk("data: " + data + "\n\n");
    ping_at_ = now_steady() + hub_.options.clients.ping_every;
}

void HttpConnection::end_stream(std::uint64_t serial) {
    if (closed_ || serial != serial_ || answered_ || !streaming_) return;
    answered_ = true;
    ping_at_.reset();
    disconnect_handlers_.clear();
    if (chunked_) push("0\r\n\r\n");
    write();
    if (outbox_.empty() && !writing_) on_answer_sent();
}

// The last responder went away without an answer: ours to admit. A stream
// ends short, without its last chunk, so that no client takes it for whole.
void HttpConnection::drop_request(std::uint64_t serial) {
    if (closed_ || serial != serial_ || answered_) return;
    if (streaming_) return close();
    respond(serial, api_error(500, "the request was dropped"), {}, nullptr);
}

void HttpConnection::push(std::string bytes) {
    if (closed_) return;
    outbox_bytes_ += bytes.size();
    if (streaming_ && outbox_bytes_ > hub_.options.clients.stream_outbox_bytes_max) {
        log_warn("http: a stream's reader is too slow, closed", kv("waiting_bytes", outbox_bytes_));
        return close();
    }
    outbox_.push_back({std::move(bytes), {}, nullptr});
    write();
}

void HttpConnection::write() {
    if (closed_ || writing_ || outbox_.empty()) return;
    std::size_t total = 0;
    while (!outbox_.empty() && total < write_bytes_max && in_flight_.size() < 64) {
        Chunk& front = outbox_.front();
        if (front.borrowed.empty()) {
            total += front.owned.size();
            in_flight_.push_back(std::move(front));
            outbox_.pop_front();
            continue;
        }
        const std::size_t part = std::min(front.borrowed.size(), write_bytes_max - total);
        in_flight_.push_back({{}, front.borrowed.first(part), front.keep});
        front.borrowed = front.borrowed.subspan(part);
        total += part;
        if (front.borrowed.empty()) outbox_.pop_front();
    }
    std::vector<asio::const_buffer> buffers;
    for (const Chunk& chunk : in_flight_)
        buffers.push_back(chunk.borrowed.empty()
                              ? asio::buffer(chunk.owned)
                              : asio::const_buffer(chunk.borrowed.data(), chunk.borrowed.size()));
    writing_ = true;
    write_deadline_ = now_steady() + hub_.options.clients.write_within;
    arm_timer();
    transport_->write(std::move(buffers),
                      [self = shared_from_this()](NetError error) { self->on_written(error); });
}

void HttpConnection::on_written(NetError error) {
    writing_ = false;
    write_deadline_.reset();
    for (const Chunk& chunk : in_flight_) outbox_bytes_ -= chunk.owned.size();
    in_flight_.clear();
    if (closed_) return;
    if (error) return close();
    if (!outbox_.empty()) return write();
    if (busy_ && answered_) on_answer_sent();
}

}  // namespace moex::net
