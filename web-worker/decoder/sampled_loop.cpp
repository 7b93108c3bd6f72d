#include "web-worker/decoder/sampled_loop.h"

#include <algorithm>

namespace moex {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

SampledLoop::SampledLoop(SequenceDecoder& decoder, SampledOptions options,
                         std::unique_ptr<TokenChooser> chooser, Events events)
    : decoder_(decoder),
      options_(std::move(options)),
      chooser_(std::move(chooser)),
      events_(std::move(events)) {
    if (!decoder_.goes_back()) options_.drafts = nullptr;
}

// Returns what a step of this number of drawn rows reads.
StepLogits SampledLoop::wanted(std::size_t num_rows) const {
    if (num_rows > 1) return by_list_ ? StepLogits::every_likeliest : StepLogits::every;
    return by_list_ ? StepLogits::likeliest : StepLogits::last;
}

void SampledLoop::start(std::span<const std::uint32_t> prompt) {
    const std::uint32_t likeliest = chooser_->num_likeliest();
    by_list_ = decoder_.finds_likeliest() && likeliest > 0 && likeliest <= LikeliestList::kept;
    const Status fed = feed_prompt(decoder_, prompt, wanted(1));
    if (!fed.ok()) return end(fed.error());
    first_end_ = decoder_.num_tokens();

    // Add 1: the answer's last token is chosen but not fed, so it takes no position of the context.
    options_.max_tokens = std::min(options_.max_tokens,
                                   decoder_.context_tokens() - decoder_.num_tokens() + 1);
    read();
}

void SampledLoop::read() {
    if (by_list_)
        return decoder_.read_likeliest([this](Result<Lists> lists) {
            if (!lists.ok()) return end_with(lists.error());
            take_lists(*lists);
        });
    decoder_.read_logits([this](Result<std::span<const float>> logits) {
        if (!logits.ok()) return end_with(logits.error());
        take_logits(*logits);
    });
}

void SampledLoop::take_lists(Lists lists) {
    for (std::size_t row = 0; row < lists.size(); ++row) {
        const auto tokens = candidates_of(lists[row], decoder_.vocab_size());
        if (tokens.empty()) return end(Error{ErrorCode::internal, "logits are not numbers"});
        if (!take(row, chooser_->choose(tokens))) return;
    }
}

void SampledLoop::take_logits(std::span<const float> logits) {
    const std::size_t row_size = decoder_.vocab_size();
    for (std::size_t row = 0; row < drafted_.size() + 1; ++row)
        if (!take(row, chooser_->choose(logits.subspan(row * row_size, row_size)))) return;
}

// Uses the token that was drawn from a row. Returns false if no further row counts: the answer has
// ended, or the next step was begun.
bool SampledLoop::take(std::size_t row, std::uint32_t token) {
    const auto& stops = options_.stop_ids;
    const bool is_stop = std::find(stops.begin(), stops.end(), token) != stops.end();
    if (cancelled_ || is_stop) {
        finish(cancelled_ ? AnswerEnd::cancelled : AnswerEnd::stop, row);
        return false;
    }
    chooser_->accept(token);
    ++num_tokens_;
    drawn_.push_back(token);
    events_.on_tokens(std::span(&token, 1));
    const bool is_last = num_tokens_ == options_.max_tokens;
    if (cancelled_ || is_last) {
        finish(cancelled_ ? AnswerEnd::cancelled : AnswerEnd::length, row);
        return false;
    }
    if (row < drafted_.size() && token == drafted_[row]) return true;
    next();
    return false;
}

// Counts the step that has ended, and begins the next one with its last drawn token.
void SampledLoop::next() {
    const std::size_t accepted = drawn_.size() - 1;
    counts_.add(drafted_.size(), accepted);
    if (accepted < drafted_.size())
        decoder_.rewind(first_end_ + static_cast<std::uint32_t>(accepted));
    if (options_.drafts != nullptr) {
        const auto took = begun_at_ ? Clock::now() - *begun_at_ : Clock::duration{};
        options_.drafts->record(drawn_, static_cast<std::uint32_t>(drafted_.size()), took);
    }
    feed_next();
}

void SampledLoop::feed_next() {
    begun_at_ = Clock::now();
    const std::uint32_t last = drawn_.back();
    drafted_.clear();
    drawn_.clear();
    first_end_ = decoder_.num_tokens() + 1;
    if (options_.drafts != nullptr) {
        // The last row of a step always draws one more token.
        const std::uint32_t room = std::min(
            {options_.max_tokens - num_tokens_ - 1, decoder_.context_tokens() - first_end_,
             decoder_.logit_rows_max() - 1, decoder_.rows_max() - 1, drafts_max});
        const auto proposed = options_.drafts->propose(room);
        const std::size_t num_rows = options_.drafts->num_paying();
        drafted_.assign(proposed.begin(), proposed.begin() + std::min(num_rows, proposed.size()));
    }

    std::vector<std::uint32_t> rows = {last};
    rows.insert(rows.end(), drafted_.begin(), drafted_.end());
    const Status fed = decoder_.feed(rows, wanted(rows.size()));
    if (!fed.ok()) return end(fed.error());
    read();
}

// Ends the answer at a row of the step. The tokens of the rows up to this one are drawn tokens; the
// rows behind it leave the cache.
void SampledLoop::finish(AnswerEnd how, std::size_t row) {
    counts_.add(drafted_.size(), row);
    if (row < drafted_.size()) decoder_.rewind(first_end_ + static_cast<std::uint32_t>(row));
    end(how);
}

// Ends the answer with an error; the steps that a cancel has dropped are none.
void SampledLoop::end_with(const Error& error) {
    if (cancelled_ && error.code == ErrorCode::cancelled) return end(AnswerEnd::cancelled);
    end(error);
}

void SampledLoop::end(Result<AnswerEnd> how) { events_.on_end(std::move(how)); }

}  // namespace moex
