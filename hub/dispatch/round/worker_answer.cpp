#include "hub/dispatch/round/worker_answer.h"

#include <algorithm>

#include "hub/dispatch/round/row_math.h"
#include "protocol/group_rows.h"

namespace moex {

std::vector<double> square_sums_of(std::span<const float> rows, std::size_t row_size) {
    std::vector<double> sums(rows.size() / row_size);
    for (std::size_t row = 0; row < sums.size(); ++row)
        sums[row] = square_sum(rows.data() + row * row_size, row_size);
    return sums;
}

std::optional<WorkerAnswer> AnswerReader::read(ByteView frame) const {
    const Result<FrameHeader> header = decode_frame_header(frame);
    if (!header.ok() ||
        (header->type != FrameType::result && header->type != FrameType::group_result))
        return std::nullopt;

    WorkerAnswer answer{
        .type = header->type, .sequence_id = header->sequence_id, .frame_bytes = frame.size()};
    const std::optional<GroupShape> asked = asked_->find(header->sequence_id);
    answer.asked_for = asked.has_value();
    if (!asked) return answer;

    if (header->type == FrameType::result)
        read_single(answer, frame, *asked);
    else
        read_group(answer, frame, *asked);
    answer.square_sums = square_sums_of(answer.y, limits_.hidden_size);
    return answer;
}

void AnswerReader::read_single(WorkerAnswer& answer, ByteView frame,
                               const GroupShape& asked) const {
    const Result<GroupShape> shape = peek_result(frame, limits_);
    if (!shape.ok()) {
        answer.broken = shape.error();
        return;
    }
    answer.shape = *shape;
    if (shape->layer != asked.layer || shape->dtype != asked.dtype ||
        shape->num_tokens != asked.num_tokens)
        return;

    Result<ExpertResult> result = decode_result(frame, limits_);
    if (!result.ok()) {
        answer.broken = result.error();
        return;
    }
    answer.expert = result->expert;
    answer.y = std::move(result->y);
}

void AnswerReader::read_group(WorkerAnswer& answer, ByteView frame, const GroupShape& asked) const {
    const Result<GroupShape> shape = peek_group_result(frame, limits_);
    if (!shape.ok()) {
        answer.broken = shape.error();
        return;
    }
    answer.shape = *shape;
    if (!(*shape == asked)) return;

    Result<GroupResult> result = decode_group_result(frame, limits_, memory_->take());
    if (!result.ok()) {
        answer.broken = result.error();
        return;
    }
    answer.times = result->times;
    answer.y = std::move(result->y);
}

}  // namespace moex
