#include "hub/dispatch/worker_answer.h"

#include <algorithm>

#include "hub/dispatch/row_math.h"
#include "protocol/group_rows.h"

namespace moex {

std::vector<double> square_sums_of(std::span<const float> rows, std::size_t row_size) {
    std::vector<double> sums(rows.size() / row_size);
    for (std::size_t row = 0; row < sums.size(); ++row)
        sums[row] = square_sum(rows.data() + row * row_size, row_size);
    return sums;
}

WorkerAnswer AnswerReader::read(const FrameHeader& header, ByteView frame,
                                const GroupShape& asked) const {
    WireLimits limits = limits_;
    if (has_lz4_flag(frame)) {
        limits.num_tokens_max = std::min(limits.num_tokens_max, asked.num_tokens);
        limits.num_pairs_max = std::min(limits.num_pairs_max, asked.num_pairs);
    }
    return read(header, frame, limits);
}

WorkerAnswer AnswerReader::read(const FrameHeader& header, ByteView frame,
                                const WireLimits& limits) const {
    WorkerAnswer answer{
        .type = header.type, .sequence_id = header.sequence_id, .frame_bytes = frame.size()};
    if (header.type == FrameType::result) {
        Result<ExpertResult> result = decode_result(frame, limits);
        if (!result.ok()) {
            answer.broken = result.error();
            return answer;
        }
        answer.shape.layer = result->layer;
        answer.shape.dtype = result->dtype;
        answer.shape.num_tokens = static_cast<std::uint32_t>(result->y.size() /
                                                             limits_.hidden_size);
        answer.expert = result->expert;
        answer.y = std::move(result->y);
    } else {
        Result<GroupResult> result = decode_group_result(frame, limits, memory_->take());
        if (!result.ok()) {
            answer.broken = result.error();
            return answer;
        }
        answer.shape = result->shape;
        answer.times = result->times;
        answer.y = std::move(result->y);
    }
    answer.square_sums = square_sums_of(answer.y, limits_.hidden_size);
    return answer;
}

std::optional<WorkerAnswer> AnswerReader::read_early(ByteView frame) const {
    const Result<FrameHeader> header = decode_frame_header(frame);
    if (!header.ok() ||
        (header->type != FrameType::result && header->type != FrameType::group_result) ||
        has_lz4_flag(frame))
        return std::nullopt;
    return read(*header, frame, limits_);
}

}  // namespace moex
