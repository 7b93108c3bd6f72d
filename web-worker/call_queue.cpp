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
std::uint32_t whole_us(double us) { return static_cast<std::uint32_t>(std::clamp(us, 0.0, 4e9)); }
}  // namespace

void CallQueue::send_busy(std::uint32_t sequence_id) {
    hub_.send(encode_busy(sequence_id, busy_retry_ms));
}

void CallQueue::refuse(std::uint32_t sequence_id, std::uint32_t num_tokens, const Error& error) {
    hub_.send_error(sequence_id, error, false,
                    error.code == ErrorCode::num_tokens_range ? text(runner_.pairs_max(num_tokens))
                                                              : std::string());
}

void CallQueue::on_group(ByteView frame, std::span<std::byte> around) {
    if (!open_) return send_busy(sequence_of(frame));
    const double arrived_ms = platform_.now_ms();
    if (runner_.has_free_lane() && waiting_.empty()) return run_group(frame, around, arrived_ms);
    if (waiting_.size() >= 2 * std::max(1u, welcome_.queue_depth))
        return send_busy(sequence_of(frame));
    waiting_.push_back({Bytes(frame.begin(), frame.end()), arrived_ms});
}

void CallQueue::run_group(ByteView frame, std::span<std::byte> around, double arrived_ms) {
    if (const Status decoded = decode_group_dispatch_into(view_, frame, welcome_.limits, scratch_);
        !decoded.ok())
        return hub_.protocol_error(decoded.error());

    // What lies before x is read by now. (A compressed x lies elsewhere.)
    const Status started = runner_.run_group(
        view_,
        [this, sequence_id = view_.sequence_id, shape = view_.shape, arrived_ms,
         asked_on = hub_.number()](Result<ByteView> y) {
            if (!hub_.online() || hub_.number() != asked_on) return next_group();
            if (y.ok())
                answer_group(sequence_id, shape, *y, arrived_ms);
            else
                hub_.send_error(sequence_id, y.error(), false);
            next_group();
        },
        around);

    if (!started.ok()) refuse(view_.sequence_id, view_.shape.num_tokens, started.error());
}

void CallQueue::answer_group(std::uint32_t sequence_id, const GroupShape& shape, ByteView y,
                             double arrived_ms) {
    const double took_ms = platform_.now_ms() - arrived_ms, gpu_us = runner_.gpu_us();
    std::optional<RoundTimes> times;
    if (std::count(welcome_.caps.begin(), welcome_.caps.end(), times_cap) > 0)
        times = RoundTimes{.worker_us = whole_us(1000 * took_ms), .gpu_us = whole_us(gpu_us)};

    ++report_.status.groups_answered;
    report_.status.pairs_answered += shape.num_pairs;
    hub_.send(frame_group_result(GroupRunner::frame_around(y), sequence_id, shape, times));
    report_.add_round(took_ms, gpu_us);
}

void CallQueue::next_group() {
    while (!waiting_.empty() && runner_.has_free_lane()) {
        Waiting next = std::move(waiting_.front());
        waiting_.pop_front();
        run_group(next.frame, next.frame, next.arrived_ms);
    }
}

void CallQueue::on_cancel(std::uint32_t sequence_id) {
    const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& one) {
        return sequence_of(one.frame) == sequence_id;
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
