// Readers for the parts of tokenizer.json beside its model. Each part is read completely, or
// refused with its name.
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
    bool add_prefix_space = false;  // applied before the pattern
};

// Ids that the post-processor adds before and after the ids of a text. "ByteLevel" adds none; it
// only moves offsets.
struct AddedIds {
    std::vector<TokenId> before, after;
};
// Returns true if the normalizer is NFC, and false for null, which means no normalizer. `depth`
// counts nested Sequences in all functions of this file.
Result<bool> load_normalizer(const Json& normalizer, int depth = 0);
// Appends to `steps`. Sets `byte_level` to true when it reads the ByteLevel step, which must be
// last.
Status load_pre_tokenizer(const Json& object, std::vector<PreTokenizerStep>& steps,
                          bool& byte_level, int depth = 0);
Status load_post_processor(const Json& object, AddedIds& added, int depth = 0);
// Accepts only ByteLevel, the inverse of this tokenizer. Null means ByteLevel, too.
Status check_decoder(const Json& object, int depth = 0);
// Reads an entry of added_tokens, or an entry of added_tokens_decoder in tokenizer_config.json to
// which the caller has added the id.
Result<AddedToken> load_added_token(const Json& object);

// Reads the fields of an object. Its errors have the form of bad_file(), and `part` names the
// object.
using Fields = JsonFields<Json, FileWording>;
Fields fields_of(const Json& object, std::string_view part);
Error bad_file(const std::string& message);
Error unsupported(const std::string& message);

}  // namespace moex::tokenizer_json
