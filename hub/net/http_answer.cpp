// The answering half of HttpConnection: it has the responders for handlers, writes heads and
// streams of events, and sends bytes.
#include <ctime>

#include "hub/base/log.h"
#include "hub/net/http_connection.h"

namespace moex::net {
namespace {

// Limits of one write: bytes that a slow client must read within `write_within`, and the number of
// buffers in one system call.
constexpr std::size_t write_bytes_max = 256 << 10, write_chunks_max = 64;

std::string http_date() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char buffer[40];
    return std::string(buffer,
                       std::strftime(buffer, sizeof buffer, "%a, %d %b %Y %H:%M:%S GMT", &parts));
}

}  // namespace

// The responder of the handlers. Any thread may call it; each call is posted to the connection's
// strand.
class ConnectionResponder : public WireResponder {
  public:
    ConnectionResponder(std::shared_ptr<HttpConnection> connection, std::uint64_t serial,
                        Dialect dialect)
        : WireResponder(dialect),
          connection_(std::move(connection)),
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
    void begin_stream(const std::string& stream_id) override {
        post([serial = serial_, stream_id](HttpConnection& connection) {
            connection.begin_stream(serial, stream_id);
        });
    }
    void expect_stream() override {
        post([serial = serial_](HttpConnection& connection) { connection.expect_stream(serial); });
    }
    void begin_records(const std::string& content_type) override {
        post([serial = serial_, content_type](HttpConnection& connection) {
            connection.begin_records(serial, content_type);
        });
    }
    void send_record(std::shared_ptr<const Bytes> record, std::function<void()> on_sent) override {
        post([serial = serial_, record = std::move(record),
              on_sent = std::move(on_sent)](HttpConnection& connection) mutable {
            connection.send_record(serial, std::move(record), std::move(on_sent));
        });
    }
    void send_event(StreamEvent event, std::function<void()> on_sent) override {
        post([serial = serial_, event = std::move(event),
              on_sent = std::move(on_sent)](HttpConnection& connection) mutable {
            connection.send_event(serial, event, std::move(on_sent));
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
    return std::make_shared<ConnectionResponder>(shared_from_this(), serial_, exchange_.dialect);
}

void HttpConnection::watch_disconnect(std::uint64_t serial, std::function<void()> handler) {
    const bool is_gone = is_over() || shutting_ || peer_done_ || serial != serial_;
    if (is_gone) return give_up({std::move(handler)});
    if (is_open(serial)) disconnect_handlers_.push_back(std::move(handler));
}

std::string HttpConnection::head_of(const HttpResponse& response,
                                    std::optional<std::uint64_t> body_bytes) {
    std::string head = text("HTTP/1.1 ", response.status, ' ', reason_phrase(response.status),
                            "\r\nDate: ", http_date(), "\r\n");
    const auto add = [&](std::string_view name, std::string_view value) {
        head += name;
        head += ": ";
        // Replace line ends in the value, so that no text which the value quotes can begin a new
        // header line.
        for (const char c : value) head += c == '\r' || c == '\n' ? ' ' : c;
        head += "\r\n";
    };
    const bool may_have_body = response.status != 204 && response.status != 304;

    bool has_cache_rule = false;
    for (const auto& [name, value] : response.headers) {
        add(name, value);
        has_cache_rule |= name == "Cache-Control";
    }
    if (!response.content_type.empty() && may_have_body) add("Content-Type", response.content_type);
    if (!has_cache_rule) add("Cache-Control", "no-store");

    add("X-Request-Id", exchange_.id);
    add("X-Content-Type-Options", "nosniff");
    add("Referrer-Policy", "no-referrer");
    add("Cross-Origin-Resource-Policy", "same-origin");
    if (exchange_.secure) add("Strict-Transport-Security", "max-age=31536000");

    if (hub_.live()->has_cors_origins) add("Vary", "Origin");
    if (!exchange_.cors_origin.empty()) {
        add("Access-Control-Allow-Origin", exchange_.cors_origin);
        add("Access-Control-Expose-Headers",
            "Retry-After, ETag, Content-Range, X-Request-Id, X-Moex-Stream");
    }

    if (body_bytes && may_have_body) add("Content-Length", text(*body_bytes));
    add("Connection", exchange_.keep_alive ? "keep-alive" : "close");
    return head + "\r\n";
}

void HttpConnection::respond(std::uint64_t serial, HttpResponse response, ByteView bytes,
                             std::shared_ptr<const void> keep) {
    if (!is_open(serial)) return;
    if (state_ == State::streaming) {
        // The head of a stream was already sent, so send this answer as the stream's last event.
        if (!exchange_.expects_stream) return;
        send_event(serial, {std::move(response.body), std::move(response.event_name)},
                   std::move(response.on_sent));
        return end_stream(serial);
    }

    enter(State::finishing);
    disconnect_handlers_.clear();
    if (hub_.draining) exchange_.keep_alive = false;
    hub_.metrics.on_http(response.status);

    const std::uint64_t size = bytes.empty() ? response.body.size() : bytes.size();
    const bool has_body = !exchange_.head_only && response.status != 204 && response.status != 304;
    exchange_.status = response.status;
    exchange_.body_bytes = has_body ? size : 0;

    std::string out = head_of(response, size);
    if (has_body && bytes.empty()) out += response.body;
    const bool borrows = has_body && !bytes.empty();
    push(std::move(out), borrows ? nullptr : std::move(response.on_sent));
    if (borrows) outbox_.push_back({{}, bytes, std::move(keep), std::move(response.on_sent)});
    write();
}

void HttpConnection::begin_stream(std::uint64_t serial, const std::string& stream_id) {
    if (!is_open(serial) || state_ == State::streaming) return;
    HttpResponse head;
    head.content_type = streams_lines(exchange_.dialect) ? "application/x-ndjson"
                                                         : "text/event-stream; charset=utf-8";
    if (!stream_id.empty()) head.headers.emplace_back("X-Moex-Stream", stream_id);
    start_stream(std::move(head));
}

void HttpConnection::begin_records(std::uint64_t serial, const std::string& content_type) {
    if (!is_open(serial) || state_ == State::streaming) return;
    exchange_.streams_records = true;
    HttpResponse head;
    head.content_type = content_type;
    start_stream(std::move(head));
}

void HttpConnection::start_stream(HttpResponse head) {
    enter(State::streaming);
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");
    if (!exchange_.chunked || hub_.draining) exchange_.keep_alive = false;
    if (exchange_.chunked) head.headers.emplace_back("Transfer-Encoding", "chunked");

    exchange_.status = 200;
    hub_.metrics.on_http(200);
    wait_at_most(hub_.options.clients.ping_every);
    push(head_of(head, std::nullopt));
}

void HttpConnection::expect_stream(std::uint64_t serial) {
    if (!is_open(serial) || state_ == State::streaming) return;
    exchange_.expects_stream = true;
    wait_at_most(hub_.options.clients.ping_every);
}

void HttpConnection::push_event(std::string_view data, std::function<void()> on_sent) {
    if (exchange_.head_only) return;
    exchange_.body_bytes += data.size();
    if (!exchange_.chunked) return push(std::string(data), std::move(on_sent));

    char size[24];
    const int length = std::snprintf(size, sizeof size, "%zx\r\n", data.size());
    std::string framed(size, static_cast<std::size_t>(length));
    framed.append(data).append("\r\n");
    push(std::move(framed), std::move(on_sent));
}

void HttpConnection::send_event(std::uint64_t serial, const StreamEvent& event,
                                std::function<void()> on_sent) {
    if (!is_open(serial) || state_ != State::streaming) return;
    wait_at_most(hub_.options.clients.ping_every);
    const bool is_line = streams_lines(exchange_.dialect);
    std::string words = event.id.empty() ? std::string() : text("id: ", event.id, '\n');
    if (!event.name.empty()) words += text("event: ", event.name, '\n');
    words += is_line ? text(event.data, '\n') : text("data: ", event.data, "\n\n");
    push_event(words, std::move(on_sent));
}

// The record's bytes are borrowed. So they do not count against stream_outbox_bytes_max: the caller
// bounds them by `on_sent`.
void HttpConnection::send_record(std::uint64_t serial, std::shared_ptr<const Bytes> record,
                                 std::function<void()> on_sent) {
    if (!is_open(serial) || state_ != State::streaming) return;
    wait_at_most(hub_.options.clients.ping_every);
    ByteWriter length;
    length.u32(static_cast<std::uint32_t>(record->size()));
    const Bytes head = std::move(length).take();
    std::string words(reinterpret_cast<const char*>(head.data()), head.size());
    const std::uint64_t size = words.size() + record->size();
    exchange_.body_bytes += size;
    if (exchange_.chunked) {
        char framed[24];
        std::snprintf(framed, sizeof framed, "%zx\r\n", static_cast<std::size_t>(size));
        words.insert(0, framed);
    }
    push(std::move(words));
    if (is_over()) return;
    if (!record->empty()) outbox_.push_back({{}, *record, record, nullptr});
    push(exchange_.chunked ? "\r\n" : "", std::move(on_sent));
}

// Sends what a client skips: a comment, a blank, or an empty record.
void HttpConnection::push_ping() {
    if (exchange_.streams_records) return push_event(std::string_view("\0\0\0\0", 4));
    push_event(streams_lines(exchange_.dialect) ? " " : ": ping\n\n");
}

void HttpConnection::end_stream(std::uint64_t serial) {
    if (!is_open(serial) || state_ != State::streaming) return;
    enter(State::finishing);
    disconnect_handlers_.clear();
    if (exchange_.chunked) push("0\r\n\r\n");
    if (outbox_.empty() && !write_pending_) on_answer_sent();
}

// Answers a request whose last responder was destroyed without an answer, which is an error of the
// hub. A stream ends without its last chunk, so that no client takes it for complete.
void HttpConnection::drop_request(std::uint64_t serial) {
    if (!is_open(serial)) return;
    if (state_ == State::streaming) return close();
    respond(serial, refusal_of({500, "the request was dropped", "", ""}));
}

void HttpConnection::push(std::string bytes, std::function<void()> on_sent) {
    if (is_over()) return;
    outbox_bytes_ += bytes.size();
    if (state_ == State::streaming &&
        outbox_bytes_ > hub_.options.clients.stream_outbox_bytes_max) {
        log_warn("http: a stream's reader is too slow, closed", kv("waiting_bytes", outbox_bytes_));
        return close();
    }
    outbox_.push_back({std::move(bytes), {}, nullptr, std::move(on_sent)});
    write();
}

void HttpConnection::write() {
    if (is_over() || write_pending_ || outbox_.empty()) return;

    std::size_t total = 0;
    while (!outbox_.empty() && total < write_bytes_max && in_flight_.size() < write_chunks_max) {
        Chunk& front = outbox_.front();
        if (front.borrowed.empty()) {
            total += front.owned.size();
            in_flight_.push_back(std::move(front));
            outbox_.pop_front();
            continue;
        }
        const std::size_t part = std::min(front.borrowed.size(), write_bytes_max - total);
        in_flight_.push_back({{}, front.borrowed.first(part), front.keep, nullptr});
        front.borrowed = front.borrowed.subspan(part);
        total += part;
        if (!front.borrowed.empty()) continue;
        in_flight_.back().on_sent = std::move(front.on_sent);
        outbox_.pop_front();
    }

    std::vector<asio::const_buffer> buffers;
    for (const Chunk& chunk : in_flight_)
        buffers.push_back(chunk.borrowed.empty()
                              ? asio::buffer(chunk.owned)
                              : asio::const_buffer(chunk.borrowed.data(), chunk.borrowed.size()));

    write_pending_ = true;
    write_deadline_ = now_steady() + hub_.options.clients.write_within;
    arm_timer();
    transport_->write(std::move(buffers),
                      [self = shared_from_this()](NetError error) { self->on_written(error); });
}

void HttpConnection::on_written(NetError error) {
    write_pending_ = false;
    write_deadline_.reset();
    const std::vector<Chunk> written = std::exchange(in_flight_, {});
    for (const Chunk& chunk : written) {
        outbox_bytes_ -= chunk.owned.size();
        if (!error && chunk.on_sent) chunk.on_sent();
    }

    if (is_over()) return;
    if (error) return close();
    if (!outbox_.empty()) return write();
    if (state_ == State::finishing) on_answer_sent();
}

}  // namespace moex::net
