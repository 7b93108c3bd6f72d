// Calls of the hub on their way through the runner: as many run as
// there are lanes, a bounded number waits, the rest is answered BUSY.
// Who asks for experts that lie in no slot waits for them, and the others behind it; who asks for
// many of them, or for more than there are slots, is computed in passes (group_passes.h).
#pragma once

#include <deque>
#include <memory>

#include "web-worker/group_runner.h"
#include "web-worker/session/hub_connection.h"
#include "web-worker/slots/group_passes.h"
#include "web-worker/slots/slot_cache.h"

namespace moex {

class CallQueue {
  public:
    // `welcome` is what was agreed; it may change between connections.
    CallQueue(Platform& platform, StatusReport& report, HubConnection& hub, GroupRunner& runner,
              SlotCache& cache, const Welcome& welcome)
        : platform_(platform),
          report_(report),
          hub_(hub),
          runner_(runner),
          cache_(cache),
          welcome_(welcome) {}
    CallQueue(const CallQueue&) = delete;

    void open() { open_ = true; }  // until then everything is answered BUSY
    void clear() {                 // the connection that asked is over
        waiting_.clear();
        end_passes();
    }
    void resume() { next_group(); }  // lanes are free again
    // `around`: memory that ends with the frame, to be overwritten; none: the frame is not.
    void on_group(ByteView frame, std::span<std::byte> around);
    void on_single(ByteView frame);
    void on_cancel(std::uint32_t sequence_id);

  private:
    struct Waiting {
        Bytes frame;
        double arrived_ms = 0;
        bool counted = false;  // what its arrival found in slots
    };
    void run_group(ByteView frame, std::span<std::byte> around, double arrived_ms, bool counted);
    void wait_for(std::vector<Unit> units, ByteView frame, double arrived_ms);
    bool begin_passes(ByteView frame, std::span<const Unit> units, double arrived_ms);
    void next_pass();
    void run_pass(std::vector<Unit> units);
    void refuse_whole(const Error& error);
    void end_passes();
    static std::vector<Unit> units_of(const GroupDispatchView& group);
    void answer_group(std::span<std::byte> around_y, std::uint32_t sequence_id,
                      const GroupShape& shape, double arrived_ms);
    void next_group();
    void send_busy(std::uint32_t sequence_id);
    void refuse(std::uint32_t sequence_id, std::uint32_t num_tokens, const Error& error);

    Platform& platform_;
    StatusReport& report_;
    HubConnection& hub_;
    GroupRunner& runner_;
    SlotCache& cache_;
    const Welcome& welcome_;
    bool open_ = false;
    std::deque<Waiting> waiting_;  // groups without a lane; the first may wait for its experts
    struct Whole {                 // a group that is computed in passes
        Bytes frame, scratch;
        GroupDispatchView group;
        std::vector<GroupPass> passes;
        std::size_t next = 0;
        std::uint32_t running = 0;
        double arrived_ms = 0;
    };
    std::shared_ptr<Whole> whole_;
    GroupDispatchView view_;
    Bytes scratch_;
};

}  // namespace moex
