// Readers for all parts of tokenizer.json except its "model". Each part is read completely, or
// refused with an error that names the part.
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
    bool add_prefix_space = false;  // a space is added before the pattern is applied
};

// Ids that the post-processor adds before and after the ids of a text. The post-processor
// "ByteLevel" adds no ids; it only moves offsets.
struct AddedIds {
    std::vector<TokenId> before, after;
};
// Reads the normalizer. Returns true if it is NFC, and false for null, which means no normalizer.
// In all functions of this file `depth` counts nested Sequences.
Result<bool> load_normalizer(const Json& normalizer, int depth = 0);
// Reads a pre-tokenizer and appends its steps to `steps`. Sets `byte_level` to true when it reads
// the ByteLevel step, which must be the last step.
Status load_pre_tokenizer(const Json& object, std::vector<PreTokenizerStep>& steps,
                          bool& byte_level, int depth = 0);
Status load_post_processor(const Json& object, AddedIds& added, int depth = 0);
// Accepts only the decoder ByteLevel, which inverts this tokenizer's encoding. Null means
// ByteLevel, too.
Status check_decoder(const Json& object, int depth = 0);
// Reads an entry of added_tokens, or an entry of added_tokens_decoder in tokenizer_config.json to
// which the caller has added the id.
Result<AddedToken> load_added_token(const Json& object);

// Reads the fields of a JSON object of a tokenizer file. Errors have the form of bad_file(), and
// name the object by `part`.
using Fields = JsonFields<Json, FileWording>;
Fields fields_of(const Json& object, std::string_view part);
Error bad_file(const std::string& message);
Error unsupported(const std::string& message);

}  // namespace moex::tokenizer_json
