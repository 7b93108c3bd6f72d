// One HTTP connection: reads requests through the gate, one at a
// time, and writes their answers; hands /worker over to a WebSocket.
// A read is always pending, also while a request runs: a client
// that hangs up is noticed at once and its generation ends.
// What the head decides is decided before the body is read. Bounds:
// bytes of all bodies together; time for head, body, idling and each
// write; bytes waiting in a stream; bytes sent ahead of an answer.
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
#include "hub/net/routes.h"

namespace moex::net {

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
  public:
    HttpConnection(HubContext& hub, const Routes& routes, std::unique_ptr<Transport> transport,
                   std::string peer_address);
    ~HttpConnection();
    void start();
    // any thread: the hub ends; what still waits for an
    // answer is told so, a second call closes at once
    void shut();

  private:
    friend class ConnectionResponder;
    // A stretch of the answer: bytes of its own, or borrowed ones with their owner.
    struct Chunk {
        std::string owned;
        ByteView borrowed;
        std::shared_ptr<const void> keep;
    };

    void read();
    void on_read(NetError error, std::size_t size);
    void process();
    HttpRequest view_of(const GatedRequest& request) const;
    void judge_head();
    bool hold_body();
    void release_body();
    void refuse(const GateRefusal& refusal);
    void handle(GatedRequest request);
    void upgrade(GatedRequest request, const HttpRequest& view);
    void on_peer_closed(bool clean);

    // The way back (http_answer.cpp), on the strand; `serial` names the request that is meant.
    std::shared_ptr<WireResponder> make_responder();
    void respond(std::uint64_t serial, HttpResponse response, ByteView bytes,
                 std::shared_ptr<const void> keep);
    void begin_stream(std::uint64_t serial);
    void expect_stream(std::uint64_t serial);
    void send_event(std::uint64_t serial, std::string data);
    void end_stream(std::uint64_t serial);
    void drop_request(std::uint64_t serial);
    void watch_disconnect(std::uint64_t serial, std::function<void()> handler);

    std::string head_of(const HttpResponse& response, std::optional<std::uint64_t> body_bytes);
    void push(std::string bytes);
    void push_chunk(std::string_view data);
    void write();
    void on_written(NetError error);
    void on_answer_sent();
    void linger();
    void on_shut();
    void close();
    void give_up(std::vector<std::function<void()>> handlers);
    void release_request();

    void arm_timer();
    void on_timer();

    HubContext& hub_;
    const Routes& routes_;
    const std::shared_ptr<LiveConnections> live_;
    std::uint64_t live_id_ = 0;
    std::unique_ptr<Transport> transport_;
    asio::any_io_executor executor_;
    const std::string peer_address_;
    bool secure_;  // of the last request whose head was read

    RequestGate gate_;
    std::string in_;
    std::array<char, 16384> read_buffer_;
    bool reading_ = false, closed_ = false, lingering_ = false, peer_done_ = false,
         shutting_ = false;
    std::uint64_t lingered_bytes_ = 0;

    std::uint64_t serial_ = 0;
    bool busy_ = false, answered_ = false, streaming_ = false, expects_stream_ = false,
         head_only_ = false, keep_alive_ = false, chunked_ = false, counted_ = false;
    // goes out once the body, which nobody keeps, has passed
    std::optional<HttpResponse> head_refusal_;
    std::uint64_t body_bytes_held_ = 0;
    std::string cors_origin_;
    std::vector<std::function<void()>> disconnect_handlers_;

    std::deque<Chunk> outbox_;
    std::vector<Chunk> in_flight_;
    std::uint64_t outbox_bytes_ = 0;
    bool writing_ = false;

    asio::steady_timer timer_;
    std::optional<TimePoint> read_deadline_, write_deadline_, ping_at_, timer_at_;
};

}  // namespace moex::net
