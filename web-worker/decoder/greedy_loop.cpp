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
      events_(std::move(events)) {
    if (!decoder_.finds_likeliest() || decoder_.logit_rows_max() < 2 ||
        decoder_.model().has_delta())
        options_.drafts = nullptr;
}

void GreedyLoop::start(std::span<const std::uint32_t> prompt) {
    const Status fed = feed_prompt(decoder_, prompt, StepLogits::last);
    if (!fed.ok()) return end(fed.error());
    first_position_ = decoder_.num_tokens();
    // Add 1: the answer's last token is chosen but not fed, so it takes no position of the context.
    options_.max_tokens = std::min(options_.max_tokens,
                                   decoder_.context_tokens() - first_position_ + 1);
    propose();
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
        on_ids(*ids);
    });
}

// Sizes the next readback: twice the tokens of the previous one, but no more tokens than are
// computed within reading_max. The first token includes the prompt's time, so it is not used to
// estimate a step. Returns the time of a token; 0 for the first one.
std::chrono::nanoseconds GreedyLoop::adapt(std::size_t num_ids) {
    const auto now = std::chrono::steady_clock::now();
    const auto before = std::exchange(heard_at_, now);
    if (delivered_ == 0) return {};
    const auto one = (now - before) / num_ids;
    const auto fits = options_.reading_max / std::max<std::chrono::nanoseconds>(one, 1ns);
    reading_ = static_cast<std::uint32_t>(std::clamp<std::int64_t>(
        std::min<std::int64_t>(fits, 2 * reading_), 1, options_.fetch_tokens));
    return one;
}

void GreedyLoop::on_ids(std::span<const std::uint32_t> ids) {
    const std::chrono::nanoseconds each = adapt(ids.size());
    if (cancelled_ && how_ == AnswerEnd::length) how_ = AnswerEnd::cancelled;
    if (how_ != AnswerEnd::length) return finish_when_idle();

    const auto stop = std::find_first_of(ids.begin(), ids.end(), options_.stop_ids.begin(),
                                         options_.stop_ids.end());
    const auto part = ids.first(static_cast<std::size_t>(stop - ids.begin()));
    delivered_ += static_cast<std::uint32_t>(part.size());
    if (!part.empty()) events_.on_tokens(part);
    if (stop != ids.end()) how_ = AnswerEnd::stop;
    if (cancelled_ && how_ == AnswerEnd::length) how_ = AnswerEnd::cancelled;

    if (how_ == AnswerEnd::length) learn(part, each);
    if (how_ == AnswerEnd::length && issued_ < options_.max_tokens) {
        if (waiting_ == 0) return issue();
        if (under_way_ == 0) compute_drafts(std::exchange(waiting_, 0));
        return;
    }
    finish_when_idle();
}

// Learns from tokens that were computed without drafts. Decides whether drafted tokens pay next.
void GreedyLoop::learn(std::span<const std::uint32_t> ids, std::chrono::nanoseconds each) {
    if (options_.drafts == nullptr) return;
    for (const std::uint32_t id : ids) {
        counts_.add(0, 0);
        last_ = id;
        options_.drafts->record(std::span(&id, 1), 0, each);
        propose();
    }
    if (waiting_ == 0 && issued_ < options_.max_tokens) waiting_ = options_.drafts->num_paying();
}

void GreedyLoop::propose() {
    if (options_.drafts == nullptr) return;
    // The last row of a step always draws one more token.
    const std::uint32_t left = options_.max_tokens - std::min(options_.max_tokens, delivered_ + 1);
    proposed_ = options_.drafts->propose(
        std::min({left, decoder_.logit_rows_max() - 1, decoder_.rows_max() - 1, drafts_max}));
}

// Computes the last token and the first `num_drafts` proposed tokens in one step. No other step is
// in flight, so that the sequence has all tokens but the last one.
void GreedyLoop::compute_drafts(std::size_t num_drafts) {
    const auto drafts = proposed_.first(std::min(num_drafts, proposed_.size()));
    if (drafts.empty()) return resume();
    begun_at_ = std::chrono::steady_clock::now();
    first_end_ = decoder_.num_tokens() + 1;
    drafted_.assign(drafts.begin(), drafts.end());
    drawn_.clear();
    std::vector<std::uint32_t> rows = {last_};
    rows.insert(rows.end(), drafted_.begin(), drafted_.end());
    const Status fed = decoder_.feed(rows, StepLogits::every_likeliest);
    if (!fed.ok()) return end(fed.error());
    decoder_.read_likeliest([this](Result<std::span<const LikeliestList>> lists) {
        if (!lists.ok()) return end(lists.error());
        on_lists(*lists);
    });
}

void GreedyLoop::on_lists(std::span<const LikeliestList> lists) {
    for (std::size_t row = 0; row < lists.size(); ++row) {
        const auto tokens = candidates_of(lists[row], decoder_.model().vocab_size);
        if (tokens.empty()) return end(Error{ErrorCode::internal, "logits are not numbers"});
        if (take(row, tokens.front().token)) continue;
        counts_.add(drafted_.size(), row);
        if (how_ != AnswerEnd::length || delivered_ == options_.max_tokens)
            return finish_when_idle();
        if (row < drafted_.size()) decoder_.rewind(first_end_ + static_cast<std::uint32_t>(row));
        break;
    }
    options_.drafts->record(drawn_, static_cast<std::uint32_t>(drafted_.size()),
                            std::chrono::steady_clock::now() - begun_at_);
    propose();
    compute_drafts(options_.drafts->num_paying());
}

// Uses the likeliest token of a row. Returns false if no further row counts: the answer has ended,
// or the token was not drafted.
bool GreedyLoop::take(std::size_t row, std::uint32_t token) {
    const auto& stops = options_.stop_ids;
    if (cancelled_)
        how_ = AnswerEnd::cancelled;
    else if (std::find(stops.begin(), stops.end(), token) != stops.end())
        how_ = AnswerEnd::stop;
    if (how_ != AnswerEnd::length) return false;
    drawn_.push_back(token);
    last_ = token;
    ++delivered_;
    issued_ = delivered_;
    events_.on_tokens(std::span(&token, 1));
    if (cancelled_) how_ = AnswerEnd::cancelled;
    if (how_ != AnswerEnd::length || delivered_ == options_.max_tokens) return false;
    return row < drafted_.size() && token == drafted_[row];
}

// Issues steps without drafts again.
void GreedyLoop::resume() {
    const Status fed = decoder_.feed(std::span(&last_, 1), StepLogits::last);
    if (!fed.ok()) return end(fed.error());
    heard_at_ = std::chrono::steady_clock::now();
    decoder_.choose();
    ++issued_;
    fetch(1);
    issue();
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
