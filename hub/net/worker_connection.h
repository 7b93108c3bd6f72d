// One worker's WebSocket: frames in, frames out, and the rules about
// text, size and silence. What frames mean is the swarm's business.
// One frame at a time goes to the swarm; the next is read when it was taken.
// How long a frame may be is told by the swarm, and rises while a read is pending.
// Owner: the socket's strand. WorkerLink's calls come from the swarm's strand and are posted here.
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
    std::string origin_;  // ours, as its upgrade named it

    // Socket strand.
    struct Outgoing {
        WireFrame frame;
        TimePoint queued_at{};  // told while a trace is written
    };
    std::deque<Outgoing> outbox_;
    std::vector<ByteView> writing_parts_;  // of the first in the outbox
    RoundTrace rounds_;
    std::optional<AnswerReader> answers_;  // its own, from the first read on
    std::uint32_t identities_ = 0;         // frames of that type
    bool accepted_ = false;                // the upgrade was answered
    bool writing_ = false, closing_ = false, close_sent_ = false, ended_ = false;
    CloseCode close_code_ = CloseCode::going_away;
    std::string close_reason_;
    asio::steady_timer close_timer_;

    // Swarm strand.
    WorkerId id_ = 0;
    bool joined_ = false;
    OnDemandTrace on_demand_;

    std::atomic<std::uint64_t> outbox_bytes_{0};
    std::atomic<bool> welcomed_{false};  // the swarm says so, once it has read the first frame
};

}  // namespace moex::net
