// The queue of the hub's calls in front of the runner. A call runs if a lane is free. A bounded
// number of further calls waits, and calls beyond that are answered BUSY. If a group needs experts
// that have no slot, the group waits until they are brought, and later calls wait behind the group.
// A group with many such experts, or with more experts than slots, is computed in passes
// (group_passes.h).
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
    // `welcome`: the values that worker and hub agreed on; they may change between connections.
    CallQueue(Platform& platform, StatusReport& report, HubConnection& hub, GroupRunner& runner,
              SlotCache& cache, const Welcome& welcome)
        : platform_(platform),
          report_(report),
          hub_(hub),
          runner_(runner),
          cache_(cache),
          welcome_(welcome) {}
    CallQueue(const CallQueue&) = delete;

    void open() { open_ = true; }  // every call before this is answered BUSY
    void clear() {                 // drops the waiting calls of a closed connection
        waiting_.clear();
        end_passes();
    }
    void resume() { next_group(); }  // continues when lanes are free again
    // `around`: memory that ends with `frame` and may be overwritten. If `around` is empty, the
    // memory of `frame` may not be overwritten.
    void on_group(ByteView frame, std::span<std::byte> around);
    void on_single(ByteView frame);
    void on_cancel(std::uint32_t sequence_id);

  private:
    struct Waiting {
        Bytes frame;
        double arrived_ms = 0;
        bool counted = false;  // SlotCache::count() was called for this group
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
    // Groups that wait for a lane; the first may wait for its experts.
    std::deque<Waiting> waiting_;
    struct Whole {  // the group that is computed in passes
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
