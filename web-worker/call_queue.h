// Calls of the hub on their way through the runner: as many run as
// there are lanes, a bounded number waits, the rest is answered BUSY.
#pragma once

#include <deque>

#include "web-worker/group_runner.h"
#include "web-worker/hub_connection.h"

namespace moex {

class CallQueue {
  public:
    // `welcome` is what was agreed; it may change between connections.
    CallQueue(Platform& platform, StatusReport& report, HubConnection& hub, GroupRunner& runner,
              const Welcome& welcome)
        : platform_(platform),
          report_(report),
          hub_(hub),
          runner_(runner),
          welcome_(welcome) {}
    CallQueue(const CallQueue&) = delete;

    void open() { open_ = true; }       // until then everything is answered BUSY
    void clear() { waiting_.clear(); }  // the connection that asked is over
    void resume() { next_group(); }     // lanes are free again
    // `around`: memory that ends with the frame, to be overwritten; none: the frame is not.
    void on_group(ByteView frame, std::span<std::byte> around);
    void on_single(ByteView frame);
    void on_cancel(std::uint32_t sequence_id);

  private:
    void run_group(ByteView frame, std::span<std::byte> around, double arrived_ms);
    void answer_group(std::uint32_t sequence_id, const GroupShape& shape, ByteView y,
                      double arrived_ms);
    void next_group();
    void send_busy(std::uint32_t sequence_id);
    void refuse(std::uint32_t sequence_id, std::uint32_t num_tokens, const Error& error);

    Platform& platform_;
    StatusReport& report_;
    HubConnection& hub_;
    GroupRunner& runner_;
    const Welcome& welcome_;
    bool open_ = false;
    struct Waiting {
        Bytes frame;
        double arrived_ms = 0;
    };
    std::deque<Waiting> waiting_;  // groups without a lane
    GroupDispatchView view_;
    Bytes scratch_;
};

}  // namespace moex
