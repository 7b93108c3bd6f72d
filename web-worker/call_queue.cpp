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
    if (runner_.has_free_lane() && waiting_.empty() && !whole_)
        return run_group(frame, around, arrived_ms, false);
    if (waiting_.size() >= 2 * std::max(1u, welcome_.queue_depth))
        return send_busy(sequence_of(frame));
    waiting_.push_back({Bytes(frame.begin(), frame.end()), arrived_ms});
}

std::vector<Unit> CallQueue::units_of(const GroupDispatchView& group) {
    std::vector<Unit> units;
    for (const GroupExpert& expert : group.experts)
        units.push_back({group.shape.layer, expert.expert});
    return units;
}

void CallQueue::run_group(ByteView frame, std::span<std::byte> around, double arrived_ms,
                          bool counted) {
    if (const Status decoded = decode_group_dispatch_into(view_, frame, welcome_.limits, scratch_);
        !decoded.ok())
        return hub_.protocol_error(decoded.error());

    std::vector<Unit> units;
    if (cache_.on_demand()) {
        units = units_of(view_);
        // If the worker does not hold one of the experts at all, the runner refuses the group.
        const bool all_held = std::all_of(units.begin(), units.end(),
                                          [this](const Unit& unit) { return cache_.holds(unit); });
        if (all_held && !counted) cache_.count(units);
        if (all_held && begin_passes(frame, units, arrived_ms)) return;
        if (all_held && !cache_.in_slots(units)) return wait_for(units, frame, arrived_ms);
    }

    // The bytes of the frame before the rows x have been read and may be overwritten. (Rows that
    // were compressed are in a buffer of their own.)
    const Status started = runner_.run_group(
        view_,
        [this, sequence_id = view_.sequence_id, shape = view_.shape, arrived_ms, units,
         asked_on = hub_.number()](Result<ByteView> y) {
            cache_.end_use(units);
            if (!hub_.online() || hub_.number() != asked_on) return next_group();
            if (y.ok())
                answer_group(GroupRunner::frame_around(*y), sequence_id, shape, arrived_ms);
            else
                hub_.send_error(sequence_id, y.error(), false);
            next_group();
        },
        around);

    if (!started.ok()) return refuse(view_.sequence_id, view_.shape.num_tokens, started.error());
    cache_.begin_use(units);
}

// Puts the group in front of the queue until its experts have slots.
void CallQueue::wait_for(std::vector<Unit> units, ByteView frame, double arrived_ms) {
    waiting_.push_front({Bytes(frame.begin(), frame.end()), arrived_ms, true});
    cache_.bring(std::move(units), [this, sequence_id = view_.sequence_id](Status brought) {
        // True if the group is still the first in the queue: it was neither cancelled nor sent on
        // an earlier connection.
        const bool is_first = !waiting_.empty() &&
                              sequence_of(waiting_.front().frame) == sequence_id;
        if (!brought.ok() && is_first) {
            waiting_.pop_front();
            hub_.send_error(sequence_id, brought.error(), false);
        }
        next_group();
    });
}

// ---- The following functions compute a group in passes.

// Starts to compute a group in passes. Returns false if it needs no passes. `view_` is the decoded
// `frame`. No other group starts until all of its passes have started.
bool CallQueue::begin_passes(ByteView frame, std::span<const Unit> units, double arrived_ms) {
    std::vector<GroupPass> passes = cut_passes(
        static_cast<std::uint32_t>(units.size()), cache_.slots(),
        [&](std::uint32_t expert) { return cache_.in_slots(units.subspan(expert, 1)); });
    if (passes.empty()) return false;

    whole_ = std::make_shared<Whole>();
    whole_->frame.assign(frame.begin(), frame.end());
    whole_->arrived_ms = arrived_ms;
    whole_->passes = std::move(passes);
    const Status decoded = decode_group_dispatch_into(whole_->group, whole_->frame, welcome_.limits,
                                                      whole_->scratch);
    MOEX_CHECK(decoded.ok(), "what was decoded before is decoded again");
    if (const Status begun = runner_.begin_passes(whole_->group); begun.ok())
        next_pass();
    else
        refuse_whole(begun.error());
    return true;
}

// Brings the experts of the next pass while the preceding pass runs.
void CallQueue::next_pass() {
    while (whole_ && whole_->next < whole_->passes.size() &&
           whole_->running < GroupRunner::passes_max && !cache_.bringing()) {
        std::vector<Unit> units;
        for (const std::uint32_t expert : whole_->passes[whole_->next])
            units.push_back({whole_->group.shape.layer, whole_->group.experts[expert].expert});
        if (cache_.in_slots(units)) {
            run_pass(std::move(units));
            continue;
        }
        cache_.bring(units, [this, whole = std::weak_ptr(whole_)](Status brought) {
            if (!brought.ok() && whole_ && whole.lock() == whole_) refuse_whole(brought.error());
            next_group();
        });
    }
}

// The callback keeps the group alive until the pass in flight has ended, even if the group is
// cancelled.
void CallQueue::run_pass(std::vector<Unit> units) {
    const bool is_last = whole_->next + 1 == whole_->passes.size();
    const Status started = runner_.run_pass(
        whole_->passes[whole_->next], is_last,
        [this, whole = whole_, is_last, units](Result<ByteView> y) {
            cache_.end_use(units);
            --whole->running;
            if (whole == whole_ && !y.ok()) return refuse_whole(y.error());
            if (whole == whole_ && is_last) {
                answer_group(GroupRunner::frame_around(*y), whole->group.sequence_id,
                             whole->group.shape, whole->arrived_ms);
                whole_.reset();
            }
            next_group();
        });
    if (!started.ok()) return refuse_whole(started.error());
    ++whole_->next;
    ++whole_->running;
    cache_.begin_use(units);
}

void CallQueue::refuse_whole(const Error& error) {
    refuse(whole_->group.sequence_id, whole_->group.shape.num_tokens, error);
    end_passes();
    next_group();
}

void CallQueue::end_passes() {
    if (whole_) runner_.end_passes();
    whole_.reset();
}

void CallQueue::answer_group(std::span<std::byte> around_y, std::uint32_t sequence_id,
                             const GroupShape& shape, double arrived_ms) {
    const double took_ms = platform_.now_ms() - arrived_ms, gpu_us = runner_.gpu_us();
    std::optional<RoundTimes> times;
    if (std::count(welcome_.caps.begin(), welcome_.caps.end(), times_cap) > 0)
        times = RoundTimes{.worker_us = whole_us(1000 * took_ms), .gpu_us = whole_us(gpu_us)};

    ++report_.status.groups_answered;
    report_.status.pairs_answered += shape.num_pairs;
    hub_.send(frame_group_result(around_y, sequence_id, shape, times));
    report_.add_round(took_ms, gpu_us);
}

void CallQueue::next_group() {
    if (whole_) return next_pass();
    while (!waiting_.empty() && runner_.has_free_lane() && !cache_.bringing() && !whole_) {
        Waiting next = std::move(waiting_.front());
        waiting_.pop_front();
        run_group(next.frame, next.frame, next.arrived_ms, next.counted);
    }
}

void CallQueue::on_cancel(std::uint32_t sequence_id) {
    if (whole_ && whole_->group.sequence_id == sequence_id) {
        end_passes();  // a pass that is in flight ends without an answer
        ++report_.status.groups_cancelled;
        return;
    }
    const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& one) {
        return sequence_of(one.frame) == sequence_id;
    });
    // The call was submitted to the runner already, or is unknown. CANCEL gets no answer in either
    // case.
    if (found == waiting_.end()) return;
    waiting_.erase(found);
    ++report_.status.groups_cancelled;
}

void CallQueue::on_single(ByteView frame) {
    auto decoded = decode_dispatch(frame, welcome_.limits);
    if (!decoded.ok()) return hub_.protocol_error(decoded.error());

    if (!open_) return send_busy(decoded->sequence_id);
    const Dispatch call = std::move(*decoded);

    // The sender of a single call retries after BUSY.
    const Unit unit{call.layer, call.expert};
    if (cache_.on_demand() && cache_.holds(unit) && !cache_.in_slots({&unit, 1})) {
        cache_.expect(unit);
        return send_busy(call.sequence_id);
    }

    const double begin_ms = platform_.now_ms();
    const Status started = runner_.run_single(
        unit, call.x, [this, call, begin_ms, asked_on = hub_.number()](Result<ByteView> y) {
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
