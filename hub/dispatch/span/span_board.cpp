#include "hub/dispatch/span/span_board.h"

#include <algorithm>
#include <utility>

namespace moex {

void SpanBoard::add(const ReadySpan& span) {
    const std::lock_guard lock(mutex_);
    ready_.push_back(span);
}

void SpanBoard::remove(std::uint32_t span) {
    {
        const std::lock_guard lock(mutex_);
        std::erase_if(ready_, [&](const ReadySpan& one) { return one.id == span; });
        used_in_.erase(span);
        for (auto& [id, step] : steps_)
            if (step.span == span && !step.answer)
                step.answer = Answer{
                    {}, Error{ErrorCode::unavailable, "the span's worker left"}, 0};
    }
    changed_.notify_all();
}

void SpanBoard::retire(std::uint32_t span) {
    const std::lock_guard lock(mutex_);
    std::erase_if(ready_, [&](const ReadySpan& one) { return one.id == span; });
}

void SpanBoard::answer(std::uint32_t step, TimePoint now, Result<SpanAnswer> answer,
                       std::uint64_t bytes) {
    {
        const std::lock_guard lock(mutex_);
        const auto found = steps_.find(step);
        if (found == steps_.end() || found->second.answer) return;
        found->second.answer = Answer{now, std::move(answer), bytes};
    }
    changed_.notify_all();
}

std::vector<ReadySpan> SpanBoard::ready() const {
    const std::lock_guard lock(mutex_);
    return ready_;
}

void SpanBoard::set_used(std::set<std::uint32_t> used, std::set<std::uint32_t> able) {
    const std::lock_guard lock(mutex_);
    ++num_steps_;
    for (const ReadySpan& span : ready_)
        if (used.contains(span.id)) used_in_[span.id] = num_steps_;
    used_ = std::move(used);
    able_ = std::move(able);
}

void SpanBoard::note_time(TimePoint now) {
    const std::lock_guard lock(mutex_);
    if (num_steps_ != std::exchange(noted_steps_, num_steps_))
        noted_at_ = now;
    else if (now - noted_at_ >= idle_after)
        used_in_.clear();
}

bool SpanBoard::is_used(std::uint32_t span) const {
    const std::lock_guard lock(mutex_);
    return used_.contains(span);
}

bool SpanBoard::was_used(std::uint32_t span) const {
    const std::lock_guard lock(mutex_);
    const auto found = used_in_.find(span);
    return found != used_in_.end() && num_steps_ - found->second < recent_steps;
}

bool SpanBoard::can_take_over(std::uint32_t span) const {
    const std::lock_guard lock(mutex_);
    return able_.contains(span);
}

void SpanBoard::expect(std::uint32_t step, std::uint32_t span) {
    const std::lock_guard lock(mutex_);
    steps_[step].span = span;
}

std::optional<SpanBoard::Answer> SpanBoard::take(std::uint32_t step) {
    const auto found = steps_.find(step);
    if (found == steps_.end() || !found->second.answer) return std::nullopt;
    std::optional<Answer> answer = std::move(found->second.answer);
    steps_.erase(found);
    return answer;
}

std::optional<SpanBoard::Answer> SpanBoard::wait(std::uint32_t step, TimePoint deadline,
                                                 const std::stop_token& stop) {
    // The callback must outlive the lock below: its destructor waits for a running callback.
    const std::stop_callback wake(stop, [this] {
        const std::lock_guard lock(mutex_);
        changed_.notify_all();
    });
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] {
        const auto found = steps_.find(step);
        return stop.stop_requested() || found == steps_.end() || found->second.answer;
    });
    return take(step);
}

std::optional<SpanBoard::Answer> SpanBoard::poll(std::uint32_t step) {
    const std::lock_guard lock(mutex_);
    return take(step);
}

void SpanBoard::forget(std::uint32_t step) {
    const std::lock_guard lock(mutex_);
    steps_.erase(step);
}

}  // namespace moex
