#include "hub/model/tokenizer/tokenizer.h"

#include <algorithm>
#include <map>
#include <set>

#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/bpe.h"
#include "hub/model/tokenizer/tokenizer_json.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {
namespace {

using namespace tokenizer_json;

std::string_view trim_end(std::string_view text) {
    std::size_t end = 0;  // position behind the last character that is not white space
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Step step = utf8_step(text, at);
        at += step.num_bytes;
        if (!is_unicode_space(step.code_point)) end = at;
    }
    return text.substr(0, end);
}
std::string_view trim_start(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        const Utf8Step step = utf8_step(text, at);
        if (!is_unicode_space(step.code_point)) break;
        at += step.num_bytes;
    }
    return text.substr(at);
}

}  // namespace

struct Tokenizer::State {
    explicit State(BpeModel model) : bpe(std::move(model)) {}

    BpeModel bpe;
    bool nfc = false;
    std::vector<PreTokenizerStep> steps;
    AddedIds around_prompt;
    std::vector<AddedToken> added;
    std::map<TokenId, std::size_t> added_by_id;
    std::map<std::string, std::size_t, std::less<>> added_by_content;
    AddedTokenMatcher raw_matcher;         // before normalisation
    AddedTokenMatcher normalized_matcher;  // after it
    std::size_t id_end = 0;

    Status add(AddedToken token);
    Status read_config(std::string_view tokenizer_config_json);
    Status load_unknown(const Json& model);
    void finish_added();
    std::optional<TokenId> token_id(std::string_view token) const;

    template <class Accept, class OnText>
    void split_added(const AddedTokenMatcher& matcher, std::string_view text, const Accept& accept,
                     std::vector<TokenId>& out, const OnText& on_text) const;
    void encode_section(std::string_view text, std::vector<TokenId>& out) const;
    template <class Accept>
    std::vector<TokenId> encode(std::string_view text, bool control_in_normalized,
                                const Accept& accept) const;
};

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

Status Tokenizer::State::add(AddedToken token) {
    if (const auto found = added_by_id.find(token.id); found != added_by_id.end()) {
        if (added[found->second].content == token.content) return {};
        return bad_file(text("added tokens \"", added[found->second].content, "\" and \"",
                             token.content, "\" share the id ", token.id));
    }

    added_by_id.emplace(token.id, added.size());
    added_by_content.emplace(token.content, added.size());
    added.push_back(std::move(token));
    return {};
}

// Reads tokenizer_config.json, which names the special tokens and may have further added tokens.
Status Tokenizer::State::read_config(std::string_view tokenizer_config_json) {
    if (tokenizer_config_json.empty()) return {};
    MOEX_ASSIGN(config, parse_strict_json(tokenizer_config_json, "tokenizer_config.json"));
    if (!config.is_object())
        return Error{ErrorCode::bad_file, "tokenizer_config.json is not a JSON object"};

    for (const char* key : {"remove_space", "do_lowercase_and_remove_accent"})
        if (member(config, key) == true)
            return Error{ErrorCode::unsupported,
                         text("tokenizer_config.json: ", key, " is not supported")};

    if (const auto decoder = config.find("added_tokens_decoder");
        decoder != config.end() && decoder->is_object()) {
        for (const auto& [id_text, object] : decoder->items()) {
            if (id_text.empty() || id_text.size() > 9 ||
                id_text.find_first_not_of("0123456789") != std::string::npos)
                return Error{ErrorCode::bad_file,
                             text("tokenizer_config.json: added_tokens_decoder has the id \"",
                                  id_text, "\"")};

            Json token = object;
            if (token.is_object()) token["id"] = std::stoul(id_text);
            MOEX_ASSIGN(loaded, load_added_token(token));
            if (!added_by_content.contains(loaded.content)) MOEX_TRY(add(std::move(loaded)));
        }
    }

    std::set<std::string> special;
    const auto collect = [&](const Json& value) {
        if (value.is_string()) special.insert(value.get<std::string>());
        if (const Json& content = member(value, "content"); content.is_string())
            special.insert(content.get<std::string>());
    };

    for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token"})
        if (config.contains(key)) collect(config[key]);
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
        if (const Json& list = member(config, key); list.is_array() || list.is_object())
            for (const Json& value : list) collect(value);

    for (AddedToken& token : added)
        if (special.contains(token.content)) token.special = true;
    return {};
}

// Loads the unknown token. The tokenizer needs it only if the vocabulary lacks some bytes.
Status Tokenizer::State::load_unknown(const Json& model) {
    const Json& name = member(model, "unk_token");
    if (bpe.has_every_byte() || !name.is_string()) return {};
    if (member(model, "fuse_unk") == true)
        return unsupported("model.fuse_unk with a vocabulary that lacks some bytes");
    const auto id = token_id(name.get_ref<const std::string&>());
    if (!id) return bad_file(text("model.unk_token ", json_excerpt(name), " is no token"));
    bpe.set_unknown(*id);
    return {};
}

std::optional<TokenId> Tokenizer::State::token_id(std::string_view token) const {
    if (const auto found = added_by_content.find(token); found != added_by_content.end())
        return added[found->second].id;
    return bpe.find_token(token);
}

void Tokenizer::State::finish_added() {
    id_end = bpe.id_end();
    for (std::size_t i = 0; i < added.size(); ++i) {
        const AddedToken& token = added[i];
        id_end = std::max<std::size_t>(id_end, token.id + std::size_t{1});
        if (token.normalized && nfc)
            normalized_matcher.add(utf8_nfc(utf8_repair(token.content)), i);
        else
            raw_matcher.add(token.content, i);
    }
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(std::string_view tokenizer_json,
                                                         std::string_view tokenizer_config_json) {
    MOEX_ASSIGN(file, parse_strict_json(tokenizer_json, "tokenizer.json"));
    if (!file.is_object()) return bad_file("not a JSON object");

    // A training script leaves the settings "truncation" and "padding" of its last call in the
    // file. They are ignored here, as in other inference engines.
    const Json& model = member(file, "model");
    MOEX_ASSIGN(bpe, BpeModel::load(model));
    auto state = std::make_unique<State>(std::move(bpe));
    MOEX_ASSIGN(nfc, load_normalizer(member(file, "normalizer")));
    state->nfc = nfc;

    const Json& pre_tokenizer = member(file, "pre_tokenizer");
    if (pre_tokenizer.is_null()) return unsupported("a model without a ByteLevel pre_tokenizer");

    bool byte_level = false;
    MOEX_TRY(load_pre_tokenizer(pre_tokenizer, state->steps, byte_level));
    if (!byte_level) return unsupported("a model without a ByteLevel pre_tokenizer");
    MOEX_TRY(load_post_processor(member(file, "post_processor"), state->around_prompt));
    MOEX_TRY(check_decoder(member(file, "decoder")));

    const Json& added_tokens = member(file, "added_tokens");
    if (!added_tokens.is_null() && !added_tokens.is_array())
        return bad_file("added_tokens is not a list");

    for (const Json& object : added_tokens) {
        MOEX_ASSIGN(token, load_added_token(object));
        MOEX_TRY(state->add(std::move(token)));
    }

    MOEX_TRY(state->read_config(tokenizer_config_json));
    MOEX_TRY(state->load_unknown(model));

    state->finish_added();
    std::shared_ptr<Tokenizer> tokenizer(new Tokenizer());
    tokenizer->state_ = std::move(state);
    return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
}

// Cuts `text` at the added tokens for which `accept(token, begin, end)` returns true. Calls on_text
// for the text between two such tokens, which is already stripped.
template <class Accept, class OnText>
void Tokenizer::State::split_added(const AddedTokenMatcher& matcher, std::string_view text,
                                   const Accept& accept, std::vector<TokenId>& out,
                                   const OnText& on_text) const {
    std::size_t start = 0;
    bool strip_left = false;  // the previous token removes white space behind it
    const auto flush = [&](std::size_t end, bool strip_right) {
        std::string_view between = text.substr(start, end - start);
        if (strip_left) between = trim_start(between);
        if (strip_right) between = trim_end(between);
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
// the merges.
void Tokenizer::State::encode_section(std::string_view text, std::vector<TokenId>& out) const {
    // owns pieces with an added space; reserved, so that views into it stay valid
    std::vector<std::string> owned;
    std::vector<std::string_view> pieces{text}, next;
    std::vector<SplitPattern::Range> matches;
    for (const PreTokenizerStep& step : steps) {
        if (step.add_prefix_space) {
            owned.reserve(pieces.size());
            for (std::string_view& piece : pieces) {
                if (piece.starts_with(' ')) continue;
                owned.emplace_back(1, ' ').append(piece);
                piece = owned.back();
            }
        }

        if (!step.pattern) continue;
        next.clear();
        for (const std::string_view piece : pieces) {
            step.pattern->find(piece, matches);
            std::size_t start = 0;
            for (const auto& [begin, end] : matches) {
                if (begin > start && step.keep != PreTokenizerStep::Keep::matches)
                    next.push_back(piece.substr(start, begin - start));
                if (step.keep != PreTokenizerStep::Keep::gaps)
                    next.push_back(piece.substr(begin, end - begin));
                start = end;
            }

            if (start < piece.size() && step.keep != PreTokenizerStep::Keep::matches)
                next.push_back(piece.substr(start));
        }

        pieces.swap(next);
    }

    for (const std::string_view piece : pieces) bpe.encode_piece(piece, out);
}

template <class Accept>
std::vector<TokenId> Tokenizer::State::encode(std::string_view text, bool control_in_normalized,
                                              const Accept& accept) const {
    std::vector<TokenId> out;
    split_added(raw_matcher, text, accept, out, [&](std::string_view section) {
        const std::string normalized = nfc ? utf8_nfc(section) : std::string();
        const std::string_view view = nfc ? std::string_view(normalized) : section;

        // If normalisation has changed bytes, the byte positions of the caller's ranges are not
        // valid any more. Control tokens then count only if they are allowed everywhere in the
        // text.
        const bool same = view == section;
        const auto offset = static_cast<std::size_t>(section.data() - text.data());
        const auto accept_normalized = [&](const AddedToken& token, std::size_t begin,
                                           std::size_t end) {
            return same ? accept(token, offset + begin, offset + end)
                        : control_in_normalized || !token.is_control();
        };

        split_added(normalized_matcher, view, accept_normalized, out,
                    [&](std::string_view part) { encode_section(part, out); });
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
    const AddedIds& around = state_->around_prompt;
    std::vector<TokenId> ids = around.before, of_text = encode(text, SpecialTokens::parse);
    ids.insert(ids.end(), of_text.begin(), of_text.end());
    ids.insert(ids.end(), around.after.begin(), around.after.end());
    return ids;
}

std::string Tokenizer::token_bytes(TokenId id) const {
    if (const auto found = state_->added_by_id.find(id); found != state_->added_by_id.end())
        return state_->added[found->second].content;
    const std::string* bytes = state_->bpe.bytes_of(id);
    return bytes ? *bytes : std::string();
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
    std::string bytes;
    for (const TokenId id : ids)
        if (!skip_special || !is_special(id)) bytes += token_bytes(id);
    return utf8_repair(bytes);
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

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer),
      skip_special_(skip_special) {}

std::string StreamDecoder::push(TokenId id) {
    if (skip_special_ && tokenizer_->is_special(id)) return {};
    held_ += tokenizer_->token_bytes(id);
    const std::size_t ready = held_.size() - utf8_incomplete_tail(held_);
    std::string shown = utf8_repair(std::string_view(held_).substr(0, ready));
    held_.erase(0, ready);
    return shown;
}

std::string StreamDecoder::finish() {
    std::string rest = utf8_repair(held_);
    held_.clear();
    return rest;
}

}  // namespace moex
