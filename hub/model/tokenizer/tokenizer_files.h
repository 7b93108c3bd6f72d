// Finds the tokenizer of a checkpoint: tokenizer.json, or a file of SentencePiece or tiktoken, of
// which a tokenizer.json is made. Packages hold tokenizer.json alone, so that the hub and a tab
// read one form.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/result.h"

namespace moex {

struct CheckpointTexts {
    std::vector<std::string> names;  // file names in the checkpoint's folder
    std::function<Result<std::string>(const std::string& name)> read;
    std::string where;  // the checkpoint's folder, named in error messages
};

struct TokenizerFile {
    std::string name;            // name of the checkpoint's file, e.g. "tokenizer.model"
    std::string tokenizer_json;  // the tokenizer, converted to the format of tokenizer.json
};
// Returns the tokenizer of a checkpoint, or nullopt if it has none. The text of
// tokenizer_config.json, which may be empty, names the class of the tokenizer. The first of these
// files counts: tokenizer.json, tokenizer.model, spiece.model, sentencepiece.model, tiktoken.model,
// *.tiktoken. The tokens of added_tokens.json are added to those of a file of SentencePiece.
Result<std::optional<TokenizerFile>> find_tokenizer_file(const CheckpointTexts& checkpoint,
                                                         std::string_view tokenizer_config_json);

// The tokenizer.json that a package gets.
struct ChosenTokenizer {
    std::string tokenizer_json;         // empty: the package accepts and returns token ids only
    std::vector<std::string> warnings;  // sentences, e.g. why the package has no tokenizer
};
// Finds the tokenizer of a checkpoint and loads it once. A tokenizer that this program does not
// support leaves the package without one. A damaged tokenizer, or one with ids from `vocab_size`
// on, is an error, which names the file.
Result<ChosenTokenizer> choose_tokenizer(const CheckpointTexts& checkpoint,
                                         std::string_view tokenizer_config_json,
                                         std::uint64_t vocab_size);

// Makes a tokenizer.json of a model of SentencePiece, which is a protocol buffer (ModelProto in
// sentencepiece_model.proto). BPE and Unigram models are supported. Merges are in the order that
// transformers gives them (convert_slow_tokenizer.py): by the score of the merged piece.
Result<std::string> tokenizer_json_of_sentencepiece(std::string_view model_file,
                                                    std::string_view tokenizer_config_json);

// Makes a tokenizer.json of a file of tiktoken: a line has a token in base64 and its rank. The file
// lacks the split pattern and the special tokens, which belong to the class that
// tokenizer_config.json names. Known are TikTokenTokenizer (Kimi, Moonlight) and QWenTokenizer.
Result<std::string> tokenizer_json_of_tiktoken(std::string_view ranks_file,
                                               std::string_view tokenizer_config_json);

}  // namespace moex
