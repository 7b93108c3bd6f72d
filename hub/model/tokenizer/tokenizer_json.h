// The parts of tokenizer.json beside its model: each is read whole or refused by its name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/added_tokens.h"
#include "hub/model/tokenizer/split_pattern.h"
#include "protocol/result.h"

namespace moex::tokenizer_json {

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
// Whether it is NFC; null is no normalizer. `depth` counts Sequences inside each other, here and
// below.
Result<bool> load_normalizer(const Json& normalizer, int depth = 0);
// Appends to `steps`; `byte_level` becomes true at the ByteLevel that has to be last.
Status load_pre_tokenizer(const Json& object, std::vector<PreTokenizerStep>& steps,
                          bool& byte_level, int depth = 0);
Status load_post_processor(const Json& object, AddedIds& added, int depth = 0);
// Only ByteLevel undoes what this tokenizer does; null is taken for it.
Status check_decoder(const Json& object, int depth = 0);
// Of added_tokens, or of tokenizer_config.json's added_tokens_decoder with its id put in.
Result<AddedToken> load_added_token(const Json& object);

// Reads an object's fields and refuses in the words of bad_file(); `part` names the object.
using Fields = JsonFields<Json, FileWording>;
Fields fields_of(const Json& object, std::string_view part);
Error bad_file(const std::string& message);
Error unsupported(const std::string& message);

}  // namespace moex::tokenizer_json
