// Reads tokenizer.json and tokenizer_config.json.
#include <algorithm>
#include <set>

#include "hub/model/tokenizer/bpe.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "hub/model/tokenizer/tokenizer_state.h"
#include "hub/model/tokenizer/unigram.h"
#include "protocol/text.h"

namespace moex {

using namespace tokenizer_json;

Status TokenizerState::add(AddedToken token) {
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

Status TokenizerState::load_added(const Json& list) {
    if (!list.is_null() && !list.is_array()) return bad_file("added_tokens is not a list");
    for (const Json& object : list) {
        MOEX_ASSIGN(token, load_added_token(object));
        MOEX_TRY(add(std::move(token)));
    }
    return {};
}

// Reads tokenizer_config.json, which names the special tokens and may have further added tokens.
Status TokenizerState::read_config(const Json& config) {
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

// Adds the begin and the end of a text that tokenizer_config.json asks for ("add_bos_token",
// "add_eos_token"), if the post-processor does not add them. Files of the class LlamaTokenizerFast
// rely on it.
Status TokenizerState::add_ids_of_config(const Json& config) {
    const auto id_of = [&](const char* flag, const char* name) -> Result<std::optional<TokenId>> {
        if (member(config, flag) != true) return std::optional<TokenId>();
        const Json& value = member(config, name);
        const Json& content = value.is_object() ? member(value, "content") : value;
        if (content.is_null()) return std::optional<TokenId>();
        const auto id = content.is_string() ? token_id(content.get_ref<const std::string&>())
                                            : std::nullopt;
        if (!id)
            return Error{ErrorCode::bad_file,
                         text("tokenizer_config.json: ", flag, " is true, but ", name, " ",
                              json_excerpt(content), " is no token")};
        return id;
    };

    auto& [before, after] = around_prompt;
    MOEX_ASSIGN(bos, id_of("add_bos_token", "bos_token"));
    MOEX_ASSIGN(eos, id_of("add_eos_token", "eos_token"));
    if (bos && (before.empty() || before.front() != *bos)) before.insert(before.begin(), *bos);
    if (eos && (after.empty() || after.back() != *eos)) after.push_back(*eos);
    return {};
}

Status TokenizerState::load_model(const Json& file) {
    const Json& model = member(file, "model");
    if (!model.is_object()) return bad_file("\"model\" is missing");

    // Old files omit the "type" of the model. A list of pairs is the vocabulary of a Unigram model.
    std::string type = type_of(model);
    if (type == "?") type = member(model, "vocab").is_array() ? "Unigram" : "BPE";

    const Json& decoder = member(file, "decoder");
    if (!pre_tokenizer.byte_level() && decoder.is_null())
        return unsupported(text("pre_tokenizer \"", type_of(member(file, "pre_tokenizer")),
                                "\" (not ByteLevel) without a decoder"));

    if (type == "BPE") {
        const auto alphabet = pre_tokenizer.byte_level() ? BpeAlphabet::bytes
                                                         : BpeAlphabet::characters;
        MOEX_ASSIGN(loaded, BpeModel::load(model, alphabet));
        bpe = loaded.get();
        this->model = std::move(loaded);
    } else if (type == "Unigram" && !pre_tokenizer.byte_level()) {
        MOEX_ASSIGN(unigram, UnigramModel::load(model));
        this->model = std::move(unigram);
    } else {
        return Error{ErrorCode::unsupported,
                     text("tokenizer.json: model type \"", type, "\" is not supported",
                          pre_tokenizer.byte_level() ? " with a ByteLevel pre_tokenizer" : "",
                          "; wanted BPE or Unigram")};
    }

    if (pre_tokenizer.byte_level()) return check_byte_level_decoder(decoder);
    return {};
}

// Loads the unknown token of a BPE model. The tokenizer needs it only if the vocabulary lacks some
// bytes or characters.
Status TokenizerState::load_unknown(const Json& model_object) {
    const Json& name = member(model_object, "unk_token");
    if (!bpe || bpe->has_every_byte() || !name.is_string()) return {};

    const bool fuses = member(model_object, "fuse_unk") == true;
    if (fuses && pre_tokenizer.byte_level())
        return unsupported("model.fuse_unk with a vocabulary that lacks some bytes");
    const auto id = token_id(name.get_ref<const std::string&>());
    if (!id) return bad_file(text("model.unk_token ", json_excerpt(name), " is no token"));
    bpe->set_unknown(*id, fuses);
    return {};
}

void TokenizerState::finish_added() {
    id_end = model->id_end();
    std::set<TokenId> control;
    for (std::size_t i = 0; i < added.size(); ++i) {
        const AddedToken& token = added[i];
        id_end = std::max<std::size_t>(id_end, token.id + std::size_t{1});
        if (token.normalized && !normalizer.empty())
            normalized_matcher.add(normalizer.apply(utf8_repair(token.content), false).text, i);
        else
            raw_matcher.add(token.content, i);
        if (token.is_control()) control.insert(token.id);
    }
    model->exclude(control);
}

void TokenizerState::decode_pieces(const PieceDecoder& decoder) {
    trim = decoder.trim();
    decoded.resize(id_end);
    for (TokenId id = 0; id < id_end; ++id) {
        const auto found = added_by_id.find(id);
        const std::string* piece = found != added_by_id.end() ? &added[found->second].content
                                                              : model->bytes_of(id);
        if (piece) decoded[id] = decoder.bytes_of(*piece);
    }
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(std::string_view tokenizer_json,
                                                         std::string_view tokenizer_config_json) {
    MOEX_ASSIGN(file, parse_strict_json(tokenizer_json, "tokenizer.json"));
    if (!file.is_object()) return bad_file("not a JSON object");

    Json config = Json::object();
    if (!tokenizer_config_json.empty()) {
        MOEX_ASSIGN(parsed, parse_strict_json(tokenizer_config_json, "tokenizer_config.json"));
        if (!parsed.is_object())
            return Error{ErrorCode::bad_file, "tokenizer_config.json is not a JSON object"};
        config = std::move(parsed);
    }

    // A training script leaves the settings "truncation" and "padding" of its last call in the
    // file. They are ignored here, as in other inference engines.
    auto state = std::make_unique<TokenizerState>();
    MOEX_ASSIGN(normalizer, Normalizer::load(member(file, "normalizer")));
    state->normalizer = std::move(normalizer);
    MOEX_ASSIGN(pre_tokenizer, PreTokenizer::load(member(file, "pre_tokenizer")));
    state->pre_tokenizer = std::move(pre_tokenizer);
    MOEX_TRY(state->load_model(file));
    MOEX_TRY(load_post_processor(member(file, "post_processor"), state->around_prompt));

    MOEX_TRY(state->load_added(member(file, "added_tokens")));
    MOEX_TRY(state->read_config(config));
    MOEX_TRY(state->load_unknown(member(file, "model")));
    MOEX_TRY(state->add_ids_of_config(config));
    state->finish_added();
    if (!state->pre_tokenizer.byte_level()) {
        MOEX_ASSIGN(decoder, PieceDecoder::load(member(file, "decoder")));
        state->decode_pieces(decoder);
    }

    std::shared_ptr<Tokenizer> tokenizer(new Tokenizer());
    tokenizer->state_ = std::move(state);
    return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
}

}  // namespace moex
