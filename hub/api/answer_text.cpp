#include "hub/api/answer_text.h"

#include <algorithm>

#include "protocol/text.h"

namespace moex {

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

std::string StopFilter::push(std::string_view piece) {
    if (stopped_) return {};
    if (stops_.empty()) return std::string(piece);
    held_ += piece;
    std::size_t first = std::string::npos;
    for (const std::string& stop : stops_) {
        const std::size_t found = held_.find(stop);
        if (found >= first) continue;
        first = found;
        stop_ = stop;
    }

    if (first != std::string::npos) {
        stopped_ = true;
        std::string shown = held_.substr(0, first);
        held_.clear();
        return shown;
    }

    // The longest end of the text that begins some stop string stays
    // back. It starts where a stop starts, so never inside a character.
    std::size_t kept = 0;
    for (const std::string& stop : stops_) {
        for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > kept;
             --length) {
            if (std::string_view(held_).substr(held_.size() - length) ==
                std::string_view(stop).substr(0, length))
                kept = length;
        }
    }

    std::string shown = held_.substr(0, held_.size() - kept);
    held_.erase(0, held_.size() - kept);
    return shown;
}

std::string StopFilter::finish() { return std::exchange(held_, {}); }

AnswerText::AnswerText(const Tokenizer* tokenizer, std::vector<std::string> stops, bool keep_tokens,
                       bool keep_special)
    : tokenizer_(tokenizer),
      filter_(std::move(stops)),
      keep_tokens_(keep_tokens) {
    if (tokenizer_) decoder_ = std::make_unique<StreamDecoder>(*tokenizer_, !keep_special);
}

AnswerText::Shown AnswerText::push(const SampledToken& token) {
    std::string piece = decoder_ ? decoder_->push(token.id)
                                 : text(num_tokens_ > 0 ? " " : "", token.id);

    ++num_tokens_;
    if (keep_tokens_)
        waiting_.push_back(
            {token.id, piece, token.logprob, token.top, decoded_bytes_, decoded_characters_});

    decoded_bytes_ += piece.size();
    // pieces are whole UTF-8
    decoded_characters_ += static_cast<std::uint64_t>(
        std::count_if(piece.begin(), piece.end(), [](char c) { return (c & 0xc0) != 0x80; }));
    return release(filter_.push(piece));
}

AnswerText::Shown AnswerText::finish() {
    if (decoder_ && !filter_.stopped()) {
        const std::string rest = decoder_->finish();  // a sequence that the last tokens left broken
        if (!rest.empty() && !waiting_.empty()) waiting_.back().text += rest;
        decoded_bytes_ += rest.size();

        Shown shown = release(filter_.push(rest) + filter_.finish());
        for (TokenText& left : waiting_) shown.tokens.push_back(std::move(left));
        waiting_.clear();
        return shown;
    }

    Shown shown = release(filter_.finish());
    for (TokenText& left : waiting_) {  // the token in which a stop string began
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
        // A piece that a stop string swallowed whole begins
        // where the text ends: it is not part of the answer.
        if (filter_.stopped() && waiting_.front().offset_bytes >= shown_bytes_) break;
        shown.tokens.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
    }
    return shown;
}

}  // namespace moex
