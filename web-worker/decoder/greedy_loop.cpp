#include "web-worker/decoder/greedy_loop.h"

#include <algorithm>

namespace moex {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t readings_max = 2;

}  // namespace

GreedyLoop::GreedyLoop(GpuDecoder& decoder, GreedyOptions options, Events events)
    : decoder_(decoder),
      options_(std::move(options)),
      events_(std::move(events)) {}

void GreedyLoop::start(std::span<const std::uint32_t> prompt) {
    const Status fed = feed_prompt(decoder_, prompt, StepLogits::last);
    if (!fed.ok()) return end(fed.error());
    first_position_ = decoder_.num_tokens();
    // Add 1: the answer's last token is chosen but not fed, so it takes no position of the context.
    options_.max_tokens = std::min(options_.max_tokens,
                                   decoder_.context_tokens() - first_position_ + 1);
    decoder_.choose();
    issued_ = 1;
    fetch(1);
    issue();
}

// Issues steps and their readbacks, up to readings_max readbacks in flight.
void GreedyLoop::issue() {
    while (under_way_ < readings_max && issued_ < options_.max_tokens) {
        const std::uint32_t count = std::min(reading_, options_.max_tokens - issued_);
        for (std::uint32_t i = 0; i < count; ++i)
            if (const Status issued = decoder_.step(); !issued.ok()) return end(issued.error());
        issued_ += count;
        fetch(count);
    }
}

void GreedyLoop::fetch(std::uint32_t count) {
    ++under_way_;
    decoder_.read_chosen(count, [this](Result<GpuDecoder::TokenIds> ids) {
        --under_way_;
        if (ended_) return;
        if (!ids.ok()) return end(ids.error());
        adapt(ids->size());
        on_ids(*ids);
    });
}

// Sizes the next readback: twice the tokens of the previous one, but no more tokens than are
// computed within reading_max. The first token includes the prompt's time, so it is not used to
// estimate a step.
void GreedyLoop::adapt(std::size_t num_ids) {
    const auto now = std::chrono::steady_clock::now();
    const auto before = std::exchange(heard_at_, now);
    if (delivered_ == 0) return;
    const auto one = (now - before) / num_ids;
    const auto fits = options_.reading_max / std::max<std::chrono::nanoseconds>(one, 1ns);
    reading_ = static_cast<std::uint32_t>(std::clamp<std::int64_t>(
        std::min<std::int64_t>(fits, 2 * reading_), 1, options_.fetch_tokens));
}

void GreedyLoop::on_ids(std::span<const std::uint32_t> ids) {
    if (cancelled_ && how_ == AnswerEnd::length) how_ = AnswerEnd::cancelled;
    if (how_ != AnswerEnd::length) return finish_when_idle();

    const auto stop = std::find_first_of(ids.begin(), ids.end(), options_.stop_ids.begin(),
                                         options_.stop_ids.end());
    const auto part = ids.first(static_cast<std::size_t>(stop - ids.begin()));
    delivered_ += static_cast<std::uint32_t>(part.size());
    if (!part.empty()) events_.on_tokens(part);
    if (stop != ids.end()) how_ = AnswerEnd::stop;
    if (cancelled_ && how_ == AnswerEnd::length) how_ = AnswerEnd::cancelled;

    if (how_ == AnswerEnd::length && issued_ < options_.max_tokens) return issue();
    finish_when_idle();
}

void GreedyLoop::finish_when_idle() {
    if (under_way_ > 0) return;
    // Remove the tokens of steps beyond the end of the answer from the cache.
    decoder_.rewind(first_position_ + std::max(delivered_, 1u) - 1);
    end(how_);
}

void GreedyLoop::end(Result<AnswerEnd> how) {
    if (std::exchange(ended_, true)) return;
    events_.on_end(std::move(how));
}

}  // namespace moex
