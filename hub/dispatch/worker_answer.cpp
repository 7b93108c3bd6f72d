#include "hub/dispatch/worker_answer.h"

#include "hub/dispatch/row_math.h"
#include "protocol/group_rows.h"

namespace moex {

std::vector<double> square_sums_of(std::span<const float> rows, std::size_t row_size) {
    std::vector<double> sums(rows.size() / row_size);
    for (std::size_t row = 0; row < sums.size(); ++row)
        sums[row] = square_sum(rows.data() + row * row_size, row_size);
    return sums;
}

WorkerAnswer AnswerReader::read(const FrameHeader& header, ByteView frame) const {
    WorkerAnswer answer{
        .type = header.type, .sequence_id = header.sequence_id, .frame_bytes = frame.size()};
    if (header.type == FrameType::result) {
        Result<ExpertResult> result = decode_result(frame, limits_);
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
        Result<GroupResult> result = decode_group_result(frame, limits_, memory_->take());
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
    return read(*header, frame);
}

}  // namespace moex
