// The rounds of one worker as its connection sees them: from the question's place in the outbox to
// the answer's last byte, for `serve --trace`. What the worker told of its own times is drawn into
// the middle of the round: its clock is not ours. Of a layer that was hinted (PREFETCH) the lead is
// drawn, from the first hint to the question.
// Owner: the socket's strand.
#pragma once

#include <unordered_map>

#include "hub/base/trace.h"
#include "hub/dispatch/swarm_types.h"
#include "protocol/bytes.h"

namespace moex::net {

class RoundTrace {
  public:
    // A frame is about to be written that begins with `head`, all of it but a group's rows;
    // `queued_at` is when the swarm gave it.
    void sent(ByteView head, std::uint64_t frame_bytes, TimePoint queued_at);
    // `frame` came in `worker`'s name; of an answer the span is told.
    void received(std::uint64_t worker, ByteView frame);

  private:
    struct Hinted {
        TimePoint at{};
        std::uint64_t experts = 0;
    };
    struct Asked {
        TimePoint queued_at, written_at;
        std::uint64_t bytes = 0;
        Hinted hinted;  // what it asks for
    };
    void note_hints(ByteView frame, TimePoint queued_at);
    Hinted take_hints(std::uint16_t layer, TimePoint queued_at);

    std::unordered_map<std::uint32_t, Asked> asked_;    // by sequence id
    std::unordered_map<std::uint16_t, Hinted> hinted_;  // by layer, since it was asked last
    std::uint16_t last_layer_ = 0;
    TimePoint last_asked_{};
};

// What one worker says of its experts on demand, for the same trace: what calls found, and where
// experts lay when they became ready.
// Owner: the swarm's strand.
class OnDemandTrace {
  public:
    // Behind the swarm's own look at `frame`. `worker`: what it says since then; `tokens`: computed
    // by the hub so far.
    void received(ByteView frame, const WorkerView& worker, std::uint64_t blob_bytes,
                  std::uint64_t tokens);

  private:
    std::uint64_t misses_ = 0, tokens_ = 0;  // when it was told last
};

}  // namespace moex::net
