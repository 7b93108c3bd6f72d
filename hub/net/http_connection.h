// One HTTP connection: reads requests through the request gate, one at a time, and writes their
// answers. Hands the socket of /worker over to a WebSocket.
//
//   handshaking → reading_head → reading_body → answering → [streaming →] finishing
//                      ↑                                                   │
//                      └──────────────────── kept alive ───────────────────┤
//                                            lingering → closed ←──────────┘
//
// Every state may end in `closed`. A refusal enters `answering` from whichever state the request is
// in. An upgrade leaves `answering` for `handed_over`. A read is always pending, also while a
// request runs, so that the hub notices at once when a client disconnects, and ends its generation.
// Every decision that depends on the head alone is made before the body is read. Bounds: bytes of
// all bodies together; time for head, body, idling and each write; bytes that wait in a stream;
// bytes that a client sends ahead of an answer. Owner: the connection's strand.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "hub/net/http/request_gate.h"
#include "hub/net/http/transport.h"
#include "hub/net/hub_context.h"
#include "hub/net/routes/routes.h"

namespace moex::net {

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
  public:
    HttpConnection(HubContext& hub, const Routes& routes, std::unique_ptr<Transport> transport,
                   std::string peer_address);
    ~HttpConnection();
    void start();
    // Called from any thread when the hub stops. A request that still waits is answered that the
    // hub is stopping. A second call closes the connection at once.
    void shut();

  private:
    friend class ConnectionResponder;

    enum class State {
        handshaking,   // the TLS handshake runs (only with TLS)
        reading_head,  // between requests, or inside a head
        reading_body,  // the head was admitted or refused
        answering,     // a handler has the request; no byte of the answer was sent
        streaming,     // the head of a stream was sent, and events follow
        finishing,     // the answer is complete, and its last bytes are in flight
        lingering,     // the answer was sent; bytes that still arrive are read and dropped
        handed_over,   // a WebSocket owns the socket
        closed,
    };
    static const char* state_name(State state);
    static bool may_follow(State from, State to);

    // One request and its answer, from the moment at which the request's head is complete or
    // refused.
    struct Exchange {
        std::string id, method, raw_target, client_address, cors_origin;
        TimePoint began{};
        Dialect dialect = Dialect::openai;
        unsigned status = 0;  // status of the answer; 0: no head of an answer was sent
        std::uint64_t body_bytes = 0;
        bool secure = false;  // the client used TLS, to the hub or to a trusted proxy
        bool keep_alive = false, chunked = false, head_only = false;
        bool expects_stream = false;   // see HttpResponder::expect_stream()
        bool streams_records = false;  // see ByteResponder::begin_records()
        bool is_counted = false;       // true: counted among the hub's active requests
        bool is_logged = false;
        // The route that admitted the request, or a refusal. A refusal is sent once the body was
        // read and dropped.
        Checked<Admission> admission = Admission{};
    };
    // A part of the answer's bytes: either bytes that this object owns, or borrowed bytes and their
    // owner.
    struct Chunk {
        std::string owned;
        ByteView borrowed;
        std::shared_ptr<const void> keep;
        std::function<void()> on_sent;
    };

    void enter(State next);
    bool is_reading() const {
        return state_ == State::reading_head || state_ == State::reading_body;
    }
    bool is_over() const { return state_ == State::handed_over || state_ == State::closed; }
    // Returns true if request `serial` still waits for its answer or for the end of its answer.
    bool is_open(std::uint64_t serial) const {
        return serial == serial_ && (state_ == State::answering || state_ == State::streaming);
    }

    // Reading.
    void read();
    void on_read(NetError error, std::size_t size);
    void process();
    void begin_exchange();
    void judge_head();
    bool hold_body();
    void release_body();
    void refuse(const GateRefusal& refusal);
    void refuse_now(const Refusal& refusal);
    void handle(GatedRequest request);
    void upgrade(GatedRequest request);
    void on_peer_closed(bool clean);

    // Functions that answer a request (http_answer.cpp), called on the strand. `serial` identifies
    // the request.
    std::shared_ptr<WireResponder> make_responder();
    void respond(std::uint64_t serial, HttpResponse response, ByteView bytes = {},
                 std::shared_ptr<const void> keep = nullptr);
    void begin_stream(std::uint64_t serial, const std::string& stream_id = {});
    void begin_records(std::uint64_t serial, const std::string& content_type);
    void send_record(std::uint64_t serial, std::shared_ptr<const Bytes> record,
                     std::function<void()> on_sent);
    void start_stream(HttpResponse head);
    void expect_stream(std::uint64_t serial);
    void send_event(std::uint64_t serial, const StreamEvent& event,
                    std::function<void()> on_sent = {});
    void end_stream(std::uint64_t serial);
    void drop_request(std::uint64_t serial);
    void watch_disconnect(std::uint64_t serial, std::function<void()> handler);

    HttpResponse refusal_of(const Refusal& refusal) const {
        return refusal_response(refusal, exchange_.dialect);
    }
    std::string head_of(const HttpResponse& response, std::optional<std::uint64_t> body_bytes);
    void push(std::string bytes, std::function<void()> on_sent = {});
    void push_ping();
    void push_event(std::string_view data, std::function<void()> on_sent = {});
    void write();
    void on_written(NetError error);
    void on_answer_sent();
    void linger();

    void on_shut();
    void close();
    void give_up(const std::vector<std::function<void()>>& handlers);
    void release_request();
    void log_exchange(bool whole);

    void wait_at_most(Duration duration);
    void arm_timer();
    void on_timer();
    void on_deadline();

    HubContext& hub_;
    const Routes& routes_;
    const std::shared_ptr<LiveConnections> live_;
    std::uint64_t live_id_ = 0;
    std::unique_ptr<Transport> transport_;  // null after the socket was handed over to a WebSocket
    asio::any_io_executor executor_;
    const std::string peer_address_;

    State state_ = State::handshaking;
    RequestGate gate_;
    std::string in_;
    std::array<char, 16384> read_buffer_;
    bool read_pending_ = false, write_pending_ = false;
    bool peer_done_ = false;  // true: the peer sends no more bytes
    bool shutting_ = false;   // the hub stops
    std::uint64_t lingered_bytes_ = 0;

    std::uint64_t serial_ = 0;  // serial of exchange_
    Exchange exchange_;
    std::uint64_t body_bytes_held_ = 0;
    std::vector<std::function<void()>> disconnect_handlers_;

    std::deque<Chunk> outbox_;
    std::vector<Chunk> in_flight_;
    std::uint64_t outbox_bytes_ = 0;

    asio::steady_timer timer_;
    // The deadline of the current state: at this time a reading state closes the connection, and a
    // stream sends a ping. Each state sets its own deadline.
    std::optional<TimePoint> deadline_;
    std::optional<TimePoint> write_deadline_, timer_at_;
};

}  // namespace moex::net
