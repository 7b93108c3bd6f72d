// The parts of tokenizer.json beside its model: each is read whole or refused by its name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/model/tokenizer/added_tokens.h"
#include "hub/model/tokenizer/split_pattern.h"
#include "protocol/result.h"

namespace moex::tokenizer_parts {

struct PreTokenizerStep {
    enum class Keep { all, matches, gaps };
    std::optional<SplitPattern> pattern;
    Keep keep = Keep::all;
    bool add_prefix_space = false;  // comes before the pattern
};

// What comes before and after the ids of a text. "ByteLevel" only moves offsets.
struct AddedIds {
    std::vector<TokenId> before, after;
};
// Whether it is NFC; null is no normalizer. `depth`
// counts Sequences inside each other, here and below.
Result<bool> load_normalizer(const nlohmann::json& normalizer, int depth = 0);
// Appends to `steps`; `byte_level` becomes true at the ByteLevel that has to be last.
Status load_pre_tokenizer(const nlohmann::json& object, std::vector<PreTokenizerStep>& steps,
                          bool& byte_level, int depth = 0);
Status load_post_processor(const nlohmann::json& object, AddedIds& added, int depth = 0);
// Only ByteLevel undoes what this tokenizer does; null is taken for it.
Status check_decoder(const nlohmann::json& object, int depth = 0);
// Of added_tokens, or of tokenizer_config.json's added_tokens_decoder with its id put in.
Result<AddedToken> load_added_token(const nlohmann::json& object);

// A member, or null where it is missing.
const nlohmann::json& member(const nlohmann::json& object, const char* key);
bool flag(const nlohmann::json& object, const char* key, bool otherwise);
Error bad_file(const std::string& message);
Error unsupported(const std::string& message);

}  // namespace moex::tokenizer_parts
