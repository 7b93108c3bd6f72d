// Frames that arrive from workers. This part decodes each frame and calls the part that handles it.
// It keeps no state of its own.
#pragma once

#include <string>

#include "hub/dispatch/core/event_context.h"
#include "hub/dispatch/round/worker_answer.h"

namespace moex {

class SwarmFrames : public SwarmPart {
  public:
    using SwarmPart::SwarmPart;

    void count_frame(Worker& worker, std::uint64_t frame_bytes);
    void on_frame(EventContext& context, Worker& worker, ByteView frame);
    void on_answer(EventContext& context, Worker& worker, WorkerAnswer answer);
    AnswerReader reader_of(const Worker& worker) const;

  private:
    void on_unawaited_result(EventContext& context, Worker& worker, std::uint32_t sequence_id);
    void on_unasked_answer(EventContext& context, Worker& worker, std::uint32_t sequence_id);
    // Returns the fault in a worker's answer to a pending request; an empty text if there is none.
    std::string fault_of(const Worker& worker, const Attempt& attempt, const Round& round,
                         const WorkerAnswer& answer) const;
    void on_ready(EventContext& context, Worker& worker, ByteView frame);
    void on_busy(EventContext& context, Worker& worker, const FrameHeader& header, ByteView frame);
    void on_error(EventContext& context, Worker& worker, ByteView frame);
    void on_budget(EventContext& context, Worker& worker, ByteView frame);
    void on_power(EventContext& context, Worker& worker, ByteView frame);
    void on_slots(EventContext& context, Worker& worker, ByteView frame);
    void take_tiers(Worker& worker, const Ready& ready);
    // Counts a frame that breaks the protocol, and ends the connection.
    void refuse_bad(EventContext& context, Worker& worker, const Error& error);
};

}  // namespace moex
