#include "hub/model/tokenizer/tokenizer.h"

#include <algorithm>

#include "hub/model/tokenizer/tokenizer_state.h"

namespace moex {
namespace {

// Returns true for a character of a word, as \w of the tokenizers library. Source: UTS #18, annex
// C.
bool is_word_character(char32_t c) {
    using enum UnicodeCategory;
    switch (unicode_category(c)) {
        case lu:
        case ll:
        case lt:
        case lm:
        case lo:
        case mn:
        case mc:
        case me:
        case nd:
        case nl:
        case pc: return true;
        default: return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9);
    }
}

// Returns true if a word goes on across the border of [begin, end) in `text`.
bool is_inside_word(std::string_view text, std::size_t begin, std::size_t end) {
    if (end < text.size() && is_word_character(utf8_step(text, end).code_point)) return true;
    if (begin == 0) return false;
    std::size_t before = begin - 1;
    while (before > 0 && (static_cast<std::uint8_t>(text[before]) & 0xC0) == 0x80) --before;
    return is_word_character(utf8_step(text, before).code_point);
}

}  // namespace

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

std::optional<TokenId> TokenizerState::token_id(std::string_view token) const {
    if (const auto found = added_by_content.find(token); found != added_by_content.end())
        return added[found->second].id;
    return model->find_token(token);
}

// Cuts `text` at the added tokens for which `accept(token, begin, end)` returns true. Calls on_text
// for the text between two such tokens, which is already stripped.
template <class Accept, class OnText>
void TokenizerState::split_added(const AddedTokenMatcher& matcher, std::string_view text,
                                 const Accept& accept, std::vector<TokenId>& out,
                                 const OnText& on_text) const {
    std::size_t start = 0;
    bool strip_left = false;  // the previous token removes the white space after it
    const auto flush = [&](std::size_t end, bool strip_right) {
        std::string_view between = text.substr(start, end - start);
        if (strip_left) between = utf8_trim_start(between);
        if (strip_right) between = utf8_trim_end(between);
        if (!between.empty()) on_text(between);
    };

    if (!matcher.empty()) {
        for (std::size_t at = 0; at < text.size();) {
            std::size_t num_bytes = 0;
            const int index = matcher.longest_at(text, at, num_bytes);
            if (index < 0 || !accept(added[static_cast<std::size_t>(index)], at, at + num_bytes)) {
                ++at;
                continue;
            }

            const AddedToken& token = added[static_cast<std::size_t>(index)];
            if (token.single_word && is_inside_word(text, at, at + num_bytes)) {
                at += num_bytes;
                continue;
            }
            flush(at, token.lstrip);
            out.push_back(token.id);
            at += num_bytes;
            start = at;
            strip_left = token.rstrip;
        }
    }

    flush(text.size(), false);
}

// Encodes normalised text that has no added tokens: splits the text into pre-tokens, then applies
// the model. `first`: no added token stands before the text.
void TokenizerState::encode_section(std::string_view text, bool first,
                                    std::vector<TokenId>& out) const {
    const PreTokenizer::Pieces pieces = pre_tokenizer.split(text, first);
    for (const std::string_view piece : pieces.views) model->encode_piece(piece, out);
}

template <class Accept>
std::vector<TokenId> TokenizerState::encode(std::string_view text, bool control_in_normalized,
                                            const Accept& accept) const {
    std::vector<TokenId> out;
    split_added(raw_matcher, text, accept, out, [&](std::string_view section) {
        const bool first = out.empty();
        if (normalizer.empty()) return encode_section(section, first, out);

        // If a normal form has changed bytes, the byte positions of the caller's ranges are not
        // known any more. Control tokens then count only if they are allowed everywhere in the
        // text.
        const bool with_source = !control_in_normalized && !normalized_matcher.empty();
        const Normalizer::Output normalized = normalizer.apply(section, with_source);
        const auto offset = static_cast<std::size_t>(section.data() - text.data());
        const auto accept_normalized = [&](const AddedToken& token, std::size_t begin,
                                           std::size_t end) {
            if (!normalized.source) return control_in_normalized || !token.is_control();
            const std::vector<TextRange>& source = *normalized.source;
            return accept(token, offset + source[begin].begin, offset + source[end - 1].end);
        };

        split_added(normalized_matcher, normalized.text, accept_normalized, out,
                    [&](std::string_view part) { encode_section(part, first, out); });
    });

    return out;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
    const bool parse = special == SpecialTokens::parse;
    const std::string repaired = utf8_repair(text);
    return state_->encode(repaired, parse,
                          [parse](const AddedToken& token, std::size_t, std::size_t) {
                              return parse || !token.is_control();
                          });
}

std::vector<TokenId> Tokenizer::encode(std::string_view text,
                                       std::span<const TextRange> plain) const {
    if (!utf8_is_valid(text)) return encode(text, SpecialTokens::as_text);
    return state_->encode(text, plain.empty(),
                          [&](const AddedToken& token, std::size_t begin, std::size_t end) {
                              if (!token.is_control()) return true;
                              const auto first = std::partition_point(
                                  plain.begin(), plain.end(),
                                  [&](const TextRange& range) { return range.end <= begin; });
                              return first == plain.end() || first->begin >= end;
                          });
}

std::vector<TokenId> Tokenizer::encode_prompt(std::string_view text) const {
    const tokenizer_json::AddedIds& around = state_->around_prompt;
    std::vector<TokenId> ids = around.before, of_text = encode(text, SpecialTokens::parse);
    ids.insert(ids.end(), of_text.begin(), of_text.end());
    ids.insert(ids.end(), around.after.begin(), around.after.end());
    return ids;
}

std::optional<TokenId> Tokenizer::begin_token() const {
    const std::vector<TokenId>& before = state_->around_prompt.before;
    return before.empty() ? std::nullopt : std::optional(before.front());
}

const std::string* TokenizerState::bytes_of(TokenId id) const {
    if (!decoded.empty()) return id < decoded.size() ? &decoded[id] : nullptr;
    if (const auto found = added_by_id.find(id); found != added_by_id.end())
        return &added[found->second].content;
    return model->bytes_of(id);
}

std::string Tokenizer::token_bytes(TokenId id) const {
    const std::string* bytes = state_->bytes_of(id);
    return bytes ? *bytes : std::string();
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
    std::string bytes;
    for (const TokenId id : ids) {
        if (skip_special && is_special(id)) continue;
        if (const std::string* token = state_->bytes_of(id)) bytes += *token;
    }

    std::string decoded = utf8_repair(bytes);
    LeadingTrim(state_->trim).apply(decoded);
    return decoded;
}

bool Tokenizer::is_special(TokenId id) const {
    const auto found = state_->added_by_id.find(id);
    return found != state_->added_by_id.end() && state_->added[found->second].special;
}

bool Tokenizer::is_added(TokenId id) const { return state_->added_by_id.contains(id); }

std::size_t Tokenizer::vocab_size() const { return state_->id_end; }

std::optional<TokenId> Tokenizer::token_id(std::string_view token) const {
    return state_->token_id(token);
}

const LeadingTrim& Tokenizer::leading_trim() const { return state_->trim; }

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special, TextBegin begin)
    : tokenizer_(&tokenizer),
      skip_special_(skip_special) {
    if (begin == TextBegin::here) trim_ = tokenizer.leading_trim();
}

std::string StreamDecoder::push(TokenId id) {
    if (skip_special_ && tokenizer_->is_special(id)) return {};
    held_ += tokenizer_->token_bytes(id);
    const std::size_t ready = held_.size() - utf8_incomplete_tail(held_);
    std::string shown = utf8_repair(std::string_view(held_).substr(0, ready));
    held_.erase(0, ready);
    trim_.apply(shown);
    return shown;
}

std::string StreamDecoder::finish() {
    std::string rest = utf8_repair(held_);
    held_.clear();
    trim_.apply(rest);
    return rest;
}

}  // namespace moex
