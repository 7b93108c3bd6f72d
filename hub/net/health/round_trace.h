// Records the rounds of one worker for `serve --trace`, as the worker's connection sees them: from
// the time at which a request frame enters the outbox to the last byte of the answer. The times
// that the worker reports are drawn into the middle of the round, because its clock is not the
// hub's. For a layer that was hinted (PREFETCH) the lead is drawn too, from the first hint to the
// request. Owner: the socket's strand.
#pragma once

#include <unordered_map>

#include "hub/base/trace.h"
#include "hub/dispatch/swarm_types.h"
#include "protocol/bytes.h"

namespace moex::net {

class RoundTrace {
  public:
    // Records a frame that is about to be written. `head` is the frame without the rows of a group;
    // the swarm sent the frame at `queued_at`.
    void sent(ByteView head, std::uint64_t frame_bytes, TimePoint queued_at);
    // Records a frame from `worker`. An answer ends the span of its request, which is then written
    // to the trace.
    void received(std::uint64_t worker, ByteView frame);

  private:
    struct Hinted {
        TimePoint at{};
        std::uint64_t experts = 0;
    };
    struct Asked {
        TimePoint queued_at, written_at;
        std::uint64_t bytes = 0;
        Hinted hinted;  // hints of the requested layer
    };
    void note_hints(ByteView frame, TimePoint queued_at);
    Hinted take_hints(std::uint16_t layer, TimePoint queued_at);

    std::unordered_map<std::uint32_t, Asked> asked_;  // by sequence id
    // Keyed by layer: hints since the last request of the layer.
    std::unordered_map<std::uint16_t, Hinted> hinted_;
    std::uint16_t last_layer_ = 0;
    TimePoint last_asked_{};
};

// Records the figures that one worker reports about experts on demand, for the same trace: hits and
// misses of calls, and where the experts were stored when they became ready.
// Owner: the swarm's strand.
class OnDemandTrace {
  public:
    // Called after the swarm has read `frame`. `worker` has the figures of that frame; `tokens` is
    // the number of tokens that the hub has computed.
    void received(ByteView frame, const WorkerView& worker, std::uint64_t blob_bytes,
                  std::uint64_t tokens);

  private:
    std::uint64_t misses_ = 0, tokens_ = 0;  // values at the previous report
};

}  // namespace moex::net
