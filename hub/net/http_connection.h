// One HTTP connection: reads requests through the gate, one at a time, and writes
// their answers; hands /worker over to a WebSocket.
//
//   handshaking → reading_head → reading_body → answering → [streaming →] finishing
//                      ↑                                                   │
//                      └──────────────────── kept alive ───────────────────┤
//                                            lingering → closed ←──────────┘
//
// Every state may end in `closed`; a refusal goes to `answering` from wherever the
// request was; an upgrade leaves `answering` for `handed_over`.
// A read is always pending, also while a request runs: a client that hangs up is
// noticed at once and its generation ends. What the head decides is decided before
// the body is read. Bounds: bytes of all bodies together; time for head, body,
// idling and each write; bytes waiting in a stream; bytes sent ahead of an answer.
// Owner: the connection's strand.
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
    // Any thread: the hub ends. What still waits for an answer
    // is told so; a second call closes at once.
    void shut();

  private:
    friend class ConnectionResponder;

    enum class State {
        handshaking,   // TLS, where there is any
        reading_head,  // between requests, or inside a head
        reading_body,  // the head was judged
        answering,     // a handler has the request; nothing of the answer is out
        streaming,     // the head of a stream is out, events follow
        finishing,     // the answer is complete, its last bytes are on their way
        lingering,     // all is said; what the client still sends is read and dropped
        handed_over,   // the socket is a WebSocket's
        closed,
    };
    static const char* state_name(State state);
    static bool may_follow(State from, State to);

    // One request and its answer, from the moment its head is known, or refused.
    struct Exchange {
        std::string id, method, raw_target, client_address, cors_origin;
        TimePoint began{};
        Dialect dialect = Dialect::openai;
        unsigned status = 0;  // 0: no head of an answer is out
        std::uint64_t body_bytes = 0;
        bool secure = false;  // it came over TLS, here or at a trusted proxy
        bool keep_alive = false, chunked = false, head_only = false;
        bool expects_stream = false;  // see HttpResponder::expect_stream()
        bool is_counted = false;      // among the hub's active requests
        bool is_logged = false;
        // What its head was let in to; a refusal goes out
        // once the body, which nobody keeps, has passed.
        Checked<Admission> admission = Admission{};
    };
    // A stretch of the answer: bytes of its own, or borrowed ones with their owner.
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
    // Whether the request `serial` still waits for its answer, or for the end of it.
    bool is_open(std::uint64_t serial) const {
        return serial == serial_ && (state_ == State::answering || state_ == State::streaming);
    }

    // The way in.
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

    // The way back (http_answer.cpp), on the strand; `serial` names the request that is meant.
    std::shared_ptr<WireResponder> make_responder();
    void respond(std::uint64_t serial, HttpResponse response, ByteView bytes = {},
                 std::shared_ptr<const void> keep = nullptr);
    void begin_stream(std::uint64_t serial, const std::string& stream_id = {});
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
    std::unique_ptr<Transport> transport_;  // null once it was handed over
    asio::any_io_executor executor_;
    const std::string peer_address_;

    State state_ = State::handshaking;
    RequestGate gate_;
    std::string in_;
    std::array<char, 16384> read_buffer_;
    bool read_pending_ = false, write_pending_ = false;
    bool peer_done_ = false;  // it will send no more
    bool shutting_ = false;   // the hub ends
    std::uint64_t lingered_bytes_ = 0;

    std::uint64_t serial_ = 0;  // of exchange_
    Exchange exchange_;
    std::uint64_t body_bytes_held_ = 0;
    std::vector<std::function<void()>> disconnect_handlers_;

    std::deque<Chunk> outbox_;
    std::vector<Chunk> in_flight_;
    std::uint64_t outbox_bytes_ = 0;

    asio::steady_timer timer_;
    // When the present state has lasted long enough: a reading one for a
    // client to go on, a stream for its next ping. Each state sets its own.
    std::optional<TimePoint> deadline_;
    std::optional<TimePoint> write_deadline_, timer_at_;
};

}  // namespace moex::net
