#include "hub/api/jobs/answer_text.h"

#include <algorithm>
#include <utility>

#include "protocol/text.h"

namespace moex {

AnswerText::AnswerText(const Tokenizer* tokenizer, std::vector<std::string> stops, bool keep_tokens,
                       bool keep_special, TextBegin begin, std::uint32_t min_tokens)
    : tokenizer_(tokenizer),
      filter_(std::move(stops)),
      keep_tokens_(keep_tokens),
      min_tokens_(min_tokens) {
    if (tokenizer_) decoder_ = std::make_unique<StreamDecoder>(*tokenizer_, !keep_special, begin);
}

AnswerText::Shown AnswerText::push(const SampledToken& token) {
    std::string piece = decoder_ ? decoder_->push(token.id)
                                 : text(num_tokens_ > 0 ? " " : "", token.id);

    ++num_tokens_;
    if (keep_tokens_)
        waiting_.push_back(
            {token.id, piece, token.logprob, token.top, decoded_bytes_, decoded_characters_});

    decoded_bytes_ += piece.size();
    // Count code points. A piece never ends inside a UTF-8 sequence.
    decoded_characters_ += static_cast<std::uint64_t>(
        std::count_if(piece.begin(), piece.end(), [](char c) { return (c & 0xc0) != 0x80; }));
    if (num_tokens_ <= min_tokens_) return release(std::move(piece));
    return release(filter_.push(piece));
}

AnswerText::Shown AnswerText::finish() {
    if (decoder_ && !filter_.stopped()) {
        const std::string rest = decoder_->finish();  // an incomplete sequence
        if (!rest.empty() && !waiting_.empty()) waiting_.back().text += rest;
        decoded_bytes_ += rest.size();

        Shown shown = release(filter_.push(rest) + filter_.finish());
        for (TokenText& left : waiting_) shown.tokens.push_back(std::move(left));
        waiting_.clear();
        return shown;
    }

    Shown shown = release(filter_.finish());
    for (TokenText& left : waiting_) {  // cut the token in which a stop string began
        if (left.offset_bytes >= shown_bytes_) break;
        left.text.resize(shown_bytes_ - left.offset_bytes);
        shown.tokens.push_back(std::move(left));
    }
    waiting_.clear();
    return shown;
}

AnswerText::Shown AnswerText::release(std::string text) {
    Shown shown{.text = std::move(text)};
    shown_bytes_ += shown.text.size();

    while (!waiting_.empty() &&
           waiting_.front().offset_bytes + waiting_.front().text.size() <= shown_bytes_) {
        // A token's text that begins where the answer's text ends was removed whole by a stop
        // string; this token is not part of the answer.
        if (filter_.stopped() && waiting_.front().offset_bytes >= shown_bytes_) break;
        shown.tokens.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
    }
    return shown;
}

}  // namespace moex
