// A worker's answer as it is read before the strand sees it: decoded, and its rows measured, so
// that the strand compares and decides. A read answer takes twice the memory of its frame, or four
// times where that is int8.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "hub/dispatch/answer_memory.h"
#include "protocol/messages.h"

namespace moex {

struct WorkerAnswer {
    FrameType type = FrameType::group_result;  // or result
    std::uint32_t sequence_id = 0;
    std::uint64_t frame_bytes = 0;
    // Its bytes are no answer, or not finite; then nothing below says anything.
    std::optional<Error> broken;
    GroupShape shape;                 // of RESULT: layer, num_tokens and dtype
    std::uint16_t expert = 0;         // of RESULT
    std::vector<float> y;             // [num_rows, hidden_size]
    std::vector<double> square_sums;  // [num_rows] of y
    std::optional<RoundTimes> times;
};

// Reads answers on whatever thread has them.
class AnswerReader {
  public:
    AnswerReader(const WireLimits& limits, std::shared_ptr<AnswerMemory> memory)
        : limits_(limits),
          memory_(std::move(memory)) {}

    // `frame` is a RESULT or GROUP_RESULT by its header. A compressed one that claims more rows
    // than `asked` is broken, and takes no memory for them, however few bytes stand for them.
    WorkerAnswer read(const FrameHeader& header, ByteView frame, const GroupShape& asked) const;

    // The same, of frames that nobody has looked at. nullopt: the frame is something else, or
    // compressed, where a few bytes stand for many: it is to be read once somebody has seen that
    // it was asked for.
    std::optional<WorkerAnswer> read_early(ByteView frame) const;

  private:
    WorkerAnswer read(const FrameHeader& header, ByteView frame, const WireLimits& limits) const;

    WireLimits limits_;
    std::shared_ptr<AnswerMemory> memory_;
};

// Of each row; in double.
std::vector<double> square_sums_of(std::span<const float> rows, std::size_t row_size);

}  // namespace moex
