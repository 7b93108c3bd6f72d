// A worker's answer as it is read before the strand sees it: decoded, and its rows measured, so
// that the strand compares and decides. A read answer takes twice the memory of its frame, or four
// times where that is int8. What nobody asked for is not decoded, and neither are rows of another
// shape than was asked for: a few bytes of a liar may stand for many.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "hub/dispatch/round/answer_memory.h"
#include "hub/dispatch/round/asked_groups.h"
#include "protocol/messages.h"

namespace moex {

struct WorkerAnswer {
    FrameType type = FrameType::group_result;  // or result
    std::uint32_t sequence_id = 0;
    std::uint64_t frame_bytes = 0;
    // Its id was, when it was read; else nothing below says anything.
    bool asked_for = false;
    // Its bytes are no answer, or not finite; then nothing below says anything.
    std::optional<Error> broken;
    GroupShape shape;                 // of RESULT: layer, num_tokens and dtype
    std::uint16_t expert = 0;         // of RESULT
    std::vector<float> y;             // [num_rows, hidden_size]; empty if `shape` was not asked for
    std::vector<double> square_sums;  // [num_rows] of y
    std::optional<RoundTimes> times;
};

// Reads one worker's answers on whatever thread has them.
class AnswerReader {
  public:
    AnswerReader(const WireLimits& limits, std::shared_ptr<AnswerMemory> memory,
                 std::shared_ptr<const AskedGroups> asked)
        : limits_(limits),
          memory_(std::move(memory)),
          asked_(std::move(asked)) {}

    // nullopt: the frame is no RESULT or GROUP_RESULT by its header.
    std::optional<WorkerAnswer> read(ByteView frame) const;

  private:
    void read_single(WorkerAnswer& answer, ByteView frame, const GroupShape& asked) const;
    void read_group(WorkerAnswer& answer, ByteView frame, const GroupShape& asked) const;

    WireLimits limits_;
    std::shared_ptr<AnswerMemory> memory_;
    std::shared_ptr<const AskedGroups> asked_;
};

// Of each row; in double.
std::vector<double> square_sums_of(std::span<const float> rows, std::size_t row_size);

}  // namespace moex
