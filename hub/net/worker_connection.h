// The WebSocket of one worker: reads and writes frames, and enforces the rules about text messages,
// sizes and silence. The swarm owns the meaning of frames. Back-pressure: one frame at a time is
// posted to the swarm, and the connection reads the next frame once the swarm has taken that one.
// The swarm sets the longest frame that the connection accepts, and may raise it while a read is
// pending. Owner: the socket's strand. The swarm's strand calls WorkerLink, and the calls are
// posted here.
#pragma once

#include <atomic>
#include <deque>
#include <memory>

#include "hub/net/health/round_trace.h"
#include "hub/net/http/websocket.h"
#include "hub/net/hub_context.h"

namespace moex::net {

class WorkerConnection : public WorkerLink, public std::enable_shared_from_this<WorkerConnection> {
  public:
    WorkerConnection(HubContext& hub, std::unique_ptr<WebSocket> socket, std::string address,
                     bool loopback, bool authorized);
    ~WorkerConnection() override;
    void start(const GatedRequest& request);

    void send(WireFrame frame) override;
    void close(CloseCode code, const std::string& reason) override;
    void set_frame_limit(std::uint64_t bytes) override;

  private:
    void on_accepted();
    void read_next();
    void on_read(NetError error, Bytes frame, bool binary);
    void to_swarm(Bytes frame);
    void trace_on_demand(ByteView frame);
    void on_identity(ByteView frame);
    void write_next();
    void begin_close(CloseCode code, const std::string& reason);
    void finish_close();
    void end();

    HubContext& hub_;
    const std::shared_ptr<LiveConnections> live_;
    std::uint64_t live_id_ = 0;
    std::unique_ptr<WebSocket> socket_;
    asio::any_io_executor executor_;
    const std::string address_;
    const bool loopback_, authorized_;
    std::string origin_;  // the hub's origin, as the client named it in the upgrade request

    // Socket strand.
    struct Outgoing {
        WireFrame frame;
        TimePoint queued_at{};  // time at which the swarm sent the frame; set only for a trace
    };
    std::deque<Outgoing> outbox_;
    // Parts of the outbox's first frame, which is being written.
    std::vector<ByteView> writing_parts_;
    RoundTrace rounds_;
    std::optional<AnswerReader> answers_;  // decodes answers; set from the first read on
    std::uint32_t identities_ = 0;         // number of IDENTITY frames that were read
    bool accepted_ = false;                // true: the upgrade request was answered
    bool writing_ = false, closing_ = false, close_sent_ = false, ended_ = false;
    CloseCode close_code_ = CloseCode::going_away;
    std::string close_reason_;
    asio::steady_timer close_timer_;

    // Swarm strand.
    WorkerId id_ = 0;
    bool joined_ = false;
    OnDemandTrace on_demand_;

    std::atomic<std::uint64_t> outbox_bytes_{0};
    std::atomic<bool> welcomed_{false};  // set by the swarm once it has accepted HELLO
};

}  // namespace moex::net
