#include "hub/model/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <array>

#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "protocol/text.h"

namespace moex {
namespace {

// A model of SentencePiece begins with its first piece, which is field 1. A file of tiktoken is
// text, and a checkpoint may name either one tokenizer.model.
bool is_sentencepiece(std::string_view content) { return content.starts_with('\n'); }

bool has_name(const CheckpointTexts& checkpoint, std::string_view name) {
    const auto& names = checkpoint.names;
    return std::find(names.begin(), names.end(), name) != names.end();
}

std::optional<std::string> tokenizer_file_name(const CheckpointTexts& checkpoint) {
    constexpr std::array known = {"tokenizer.json", "tokenizer.model", "spiece.model",
                                  "sentencepiece.model", "tiktoken.model"};
    for (const char* name : known)
        if (has_name(checkpoint, name)) return name;

    std::vector<std::string> ranks;
    for (const std::string& name : checkpoint.names)
        if (name.ends_with(".tiktoken")) ranks.push_back(name);
    if (ranks.empty()) return std::nullopt;
    return *std::min_element(ranks.begin(), ranks.end());
}

// Adds the tokens of added_tokens.json, {"<|im_end|>": 32000}, which older checkpoints have beside
// their model of SentencePiece.
Status add_tokens_of_file(const CheckpointTexts& checkpoint, std::string& tokenizer_json) {
    constexpr const char* name = "added_tokens.json";
    if (!has_name(checkpoint, name)) return {};
    MOEX_ASSIGN(content, checkpoint.read(name));
    MOEX_ASSIGN(tokens, parse_strict_json(content, text(checkpoint.where, name)));
    if (!tokens.is_object())
        return Error{ErrorCode::bad_file,
                     text(checkpoint.where, name, " is not an object of tokens and ids")};

    MOEX_ASSIGN(file, parse_strict_json(tokenizer_json, "tokenizer.json"));
    for (const auto& [token, id] : tokens.items())
        file["added_tokens"].push_back(
            {{"content", token}, {"id", id}, {"special", true}, {"normalized", false}});
    tokenizer_json = file.dump();
    return {};
}

}  // namespace

Result<std::optional<TokenizerFile>> find_tokenizer_file(const CheckpointTexts& checkpoint,
                                                         std::string_view tokenizer_config_json) {
    const std::optional<std::string> name = tokenizer_file_name(checkpoint);
    if (!name) return std::optional<TokenizerFile>();

    MOEX_ASSIGN(content, checkpoint.read(*name));
    TokenizerFile file{.name = *name, .tokenizer_json = {}};
    if (*name == "tokenizer.json") {
        file.tokenizer_json = std::move(content);
        return std::optional(std::move(file));
    }

    const bool pieces = is_sentencepiece(content);
    auto made = pieces ? tokenizer_json_of_sentencepiece(content, tokenizer_config_json)
                       : tokenizer_json_of_tiktoken(content, tokenizer_config_json);
    if (!made.ok())
        return Error{made.error().code, text(checkpoint.where, *name, ": ", made.error().message)};
    file.tokenizer_json = std::move(*made);
    if (pieces) MOEX_TRY(add_tokens_of_file(checkpoint, file.tokenizer_json));
    return std::optional(std::move(file));
}

Result<ChosenTokenizer> choose_tokenizer(const CheckpointTexts& checkpoint,
                                         std::string_view tokenizer_config_json,
                                         std::uint64_t vocab_size) {
    ChosenTokenizer chosen;
    const auto without = [&](std::string_view why) {
        chosen.warnings.push_back(text(why, ": the package accepts and returns token ids only"));
        return chosen;
    };

    const auto found = find_tokenizer_file(checkpoint, tokenizer_config_json);
    if (!found.ok() && found.error().code == ErrorCode::unsupported)
        return without(found.error().message);
    if (!found.ok()) return found.error();
    if (!*found) return without("no tokenizer.json, tokenizer.model or tiktoken.model");

    const TokenizerFile& file = **found;
    const std::string what = checkpoint.where + file.name;
    const auto tokenizer = Tokenizer::load(file.tokenizer_json, tokenizer_config_json);
    if (!tokenizer.ok() && tokenizer.error().code == ErrorCode::unsupported)
        return without(text(what, ": ", tokenizer.error().message));
    if (!tokenizer.ok())
        return Error{tokenizer.error().code, text(what, ": ", tokenizer.error().message)};
    if ((*tokenizer)->vocab_size() > vocab_size)
        return Error{ErrorCode::bad_file,
                     text(what, ": has ids up to ", (*tokenizer)->vocab_size() - 1,
                          ", config.json wants fewer than ", vocab_size,
                          " (vocab_size); from another model?")};

    chosen.tokenizer_json = file.tokenizer_json;
    return chosen;
}

}  // namespace moex
