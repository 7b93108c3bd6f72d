// The rounds of one worker as its connection sees them: from the question's place in the outbox to
// the answer's last byte, for `serve --trace`. What the worker told of its own times is drawn into
// the middle of the round: its clock is not ours.
// Owner: the socket's strand.
#pragma once

#include <unordered_map>

#include "hub/base/trace.h"
#include "protocol/bytes.h"

namespace moex::net {

class RoundTrace {
  public:
    // `frame` is about to be written; `queued_at` is when the swarm gave it.
    void sent(ByteView frame, TimePoint queued_at);
    // `frame` came in `worker`'s name; of an answer the span is told.
    void received(std::uint64_t worker, ByteView frame);

  private:
    struct Asked {
        TimePoint queued_at, written_at;
        std::uint64_t bytes = 0;
    };
    std::unordered_map<std::uint32_t, Asked> asked_;  // by sequence id
};

}  // namespace moex::net
