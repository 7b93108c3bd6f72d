// A worker's answer, decoded, and with its norms computed, before the strand receives it, so that
// the strand only compares and decides. A decoded answer takes twice the memory of its frame, or
// four times if the frame has int8 rows. An answer that was not requested is not decoded, and
// neither are rows of another shape than requested: a few bytes from a malicious worker could
// expand to many.
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
    FrameType type = FrameType::group_result;  // group_result or result
    std::uint32_t sequence_id = 0;
    std::uint64_t frame_bytes = 0;
    // True if the id in the frame belonged to a pending request when the frame was read. Otherwise
    // the fields below are not set.
    bool asked_for = false;
    // The error, if the bytes are no valid answer or contain a value that is not finite. The fields
    // below are then not set.
    std::optional<Error> broken;
    GroupShape shape;          // for RESULT only layer, num_tokens and dtype are set
    std::uint16_t expert = 0;  // set for RESULT only
    // [num_rows, hidden_size]; empty if `shape` differs from the requested shape
    std::vector<float> y;
    std::vector<double> square_sums;  // [num_rows]: sum of squares of each row of y
    std::optional<RoundTimes> times;
};

// Reads the answers of a worker, on the thread of its connection.
class AnswerReader {
  public:
    AnswerReader(const WireLimits& limits, std::shared_ptr<AnswerMemory> memory,
                 std::shared_ptr<const AskedGroups> asked)
        : limits_(limits),
          memory_(std::move(memory)),
          asked_(std::move(asked)) {}

    // Decodes the frame. Returns nullopt if its header is not that of RESULT or GROUP_RESULT.
    std::optional<WorkerAnswer> read(ByteView frame) const;

  private:
    void read_single(WorkerAnswer& answer, ByteView frame, const GroupShape& asked) const;
    void read_group(WorkerAnswer& answer, ByteView frame, const GroupShape& asked) const;

    WireLimits limits_;
    std::shared_ptr<AnswerMemory> memory_;
    std::shared_ptr<const AskedGroups> asked_;
};

// Returns the sum of squares of each row, accumulated in double.
std::vector<double> square_sums_of(std::span<const float> rows, std::size_t row_size);

}  // namespace moex
