#include "web-worker/call_queue.h"

#include <algorithm>
#include <cstring>

namespace moex {
namespace {
constexpr std::uint32_t busy_retry_ms = 20;

std::uint32_t sequence_of(ByteView frame) {
    const auto header = decode_frame_header(frame);
    return header.ok() ? header->sequence_id : no_sequence_id;
}
}  // namespace

void CallQueue::send_busy(std::uint32_t sequence_id) {
    hub_.send(encode_busy(sequence_id, busy_retry_ms));
}

void CallQueue::refuse(std::uint32_t sequence_id, std::uint32_t num_tokens, const Error& error) {
    hub_.send_error(sequence_id, error, false,
                    error.code == ErrorCode::num_tokens_range ? text(runner_.pairs_max(num_tokens))
                                                              : std::string());
}

void CallQueue::on_group(ByteView frame) {
    if (!open_) return send_busy(sequence_of(frame));
    if (runner_.has_free_lane() && waiting_.empty()) return run_group(frame);
    if (waiting_.size() >= 2 * std::max(1u, welcome_.queue_depth))
        return send_busy(sequence_of(frame));
    waiting_.emplace_back(frame.begin(), frame.end());
}

void CallQueue::run_group(ByteView frame) {
    if (const Status decoded = decode_group_dispatch_into(view_, frame, welcome_.limits, scratch_);
        !decoded.ok())
        return hub_.protocol_error(decoded.error());

    const double begin_ms = platform_.now_ms();
    const Status started = runner_.run_group(
        view_, [this, sequence_id = view_.sequence_id, shape = view_.shape, begin_ms,
                asked_on = hub_.number()](Result<ByteView> y) {
            if (!hub_.online() || hub_.number() != asked_on) return next_group();
            if (y.ok()) {
                ++report_.status.groups_answered;
                report_.status.pairs_answered += shape.num_pairs;
                hub_.send(encode_group_result_bytes(sequence_id, shape, *y));
                report_.add_round(platform_.now_ms() - begin_ms, runner_.gpu_us());
            } else {
                hub_.send_error(sequence_id, y.error(), false);
            }
            next_group();
        });

    if (!started.ok()) refuse(view_.sequence_id, view_.shape.num_tokens, started.error());
}

void CallQueue::next_group() {
    while (!waiting_.empty() && runner_.has_free_lane()) {
        const Bytes frame = std::move(waiting_.front());
        waiting_.pop_front();
        run_group(frame);
    }
}

void CallQueue::on_cancel(std::uint32_t sequence_id) {
    const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const Bytes& frame) {
        return sequence_of(frame) == sequence_id;
    });
    // submitted already, or unknown: no answer either way
    if (found == waiting_.end()) return;
    waiting_.erase(found);
    ++report_.status.groups_cancelled;
}

void CallQueue::on_single(ByteView frame) {
    auto decoded = decode_dispatch(frame, welcome_.limits);
    if (!decoded.ok()) return hub_.protocol_error(decoded.error());

    if (!open_) return send_busy(decoded->sequence_id);
    const Dispatch call = std::move(*decoded);

    const double begin_ms = platform_.now_ms();
    const Status started = runner_.run_single(
        Unit{call.layer, call.expert}, call.x,
        [this, call, begin_ms, asked_on = hub_.number()](Result<ByteView> y) {
            if (!hub_.online() || hub_.number() != asked_on) return;
            if (!y.ok()) return hub_.send_error(call.sequence_id, y.error(), false);

            ExpertResult result{.sequence_id = call.sequence_id,
                                .layer = call.layer,
                                .expert = call.expert,
                                .dtype = call.dtype};

            result.y.resize(call.x.size());
            std::memcpy(result.y.data(), y->data(), y->size());
            const std::size_t hidden = welcome_.limits.hidden_size;
            for (std::size_t i = 0; i < result.y.size(); ++i)
                result.y[i] *= half_to_float(call.gates[i / hidden]);

            ++report_.status.groups_answered;
            report_.status.pairs_answered += call.gates.size();
            hub_.send(encode_result(result, welcome_.limits.hidden_size, false));
            report_.add_round(platform_.now_ms() - begin_ms, runner_.gpu_us());
        });

    if (started.ok()) return;
    if (started.error().code == ErrorCode::overloaded)
        send_busy(call.sequence_id);
    else
        refuse(call.sequence_id, static_cast<std::uint32_t>(call.gates.size()), started.error());
}

}  // namespace moex
