#include "hub/api/jobs/answer_parts.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace moex {

AnswerParts::AnswerParts(Options options) : min_tokens_(options.min_tokens) {
    const bool calls = options.call_syntax.has_value();
    if (options.channels)
        channels_.emplace(*options.channels, calls);
    else if (calls)
        calls_.emplace(*std::move(options.call_syntax), options.calls_at_once,
                       std::move(options.tools));
    if (options.stops) stops_.emplace(*std::move(options.stops));
    if (options.splits_reasoning) reasoning_.emplace(options.begins_in_reasoning);
}

// Counts one token as reasoning or as content. Blank tokens before the answer are undecided: a
// block of thoughts may follow them.
template <class Splitter>
void AnswerParts::count_reasoning(const Splitter& splitter) {
    if (splitter.undecided()) {
        ++undecided_tokens_;
    } else if (splitter.in_reasoning()) {
        reasoning_tokens_ += std::exchange(undecided_tokens_, 0) + 1;
    } else {
        undecided_tokens_ = 0;
    }
}

AnswerParts::Piece AnswerParts::push(std::string text, std::uint32_t num_tokens, bool is_last) {
    Piece piece = channels_ ? push_channels(text, is_last) : push_plain(std::move(text), is_last);
    if (!stops_ || num_tokens <= min_tokens_) return piece;
    piece.text.content = stops_->push(piece.text.content);
    if (is_last) piece.text.content += stops_->finish();
    return piece;
}

AnswerParts::Piece AnswerParts::push_channels(std::string_view text, bool is_last) {
    ChannelText parts = channels_->push(text);
    if (is_last) {
        ChannelText rest = channels_->finish();
        parts.reasoning += rest.reasoning;
        parts.content += rest.content;
        std::move(rest.calls.begin(), rest.calls.end(), std::back_inserter(parts.calls));
    } else {
        count_reasoning(*channels_);
    }
    return {{std::move(parts.reasoning), std::move(parts.content)}, std::move(parts.calls)};
}

AnswerParts::Piece AnswerParts::push_plain(std::string text, bool is_last) {
    Piece piece;
    if (reasoning_) {
        piece.text = reasoning_->push(text);
        if (!is_last) count_reasoning(*reasoning_);
        if (is_last) {
            ReasonedText rest = reasoning_->finish();
            piece.text.reasoning += rest.reasoning;
            piece.text.content += rest.content;
        }
    } else {
        piece.text.content = std::move(text);
    }
    if (!calls_) return piece;

    CalledText called = calls_->push(piece.text.content);
    piece.calls = std::move(called.calls);
    if (is_last) called.content += calls_->finish().content;
    piece.text.content = std::move(called.content);
    return piece;
}

std::uint32_t AnswerParts::num_calls() const {
    return channels_ ? channels_->num_calls() : calls_ ? calls_->num_calls() : 0;
}

std::optional<std::uint64_t> AnswerParts::reasoning_tokens() const {
    if (!reasoning_ && !channels_) return std::nullopt;
    return reasoning_tokens_;
}

}  // namespace moex
