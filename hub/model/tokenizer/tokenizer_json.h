// Readers for the post-processor, the decoder and the added tokens of tokenizer.json, and the
// helpers with which all readers of that file are written. Each part is read completely, or refused
// with an error that names the part.
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

// Limits that are above the values of all real files. They exist because each step of a normalizer,
// pre-tokenizer or decoder costs time in every encoding or decoding.
inline constexpr int sequence_depth_max = 8;
inline constexpr std::size_t steps_max = 64;

// Ids that the post-processor adds before and after the ids of a text. The post-processor
// "ByteLevel" adds no ids; it only moves offsets.
struct AddedIds {
    std::vector<TokenId> before, after;
};
// In all functions of this file `depth` counts nested Sequences.
Status load_post_processor(const Json& object, AddedIds& added, int depth = 0);
// Accepts only the decoder ByteLevel, which inverts the encoding of a ByteLevel pre-tokenizer. Null
// means ByteLevel, too.
Status check_byte_level_decoder(const Json& object, int depth = 0);
// Reads an entry of added_tokens, or an entry of added_tokens_decoder in tokenizer_config.json to
// which the caller has added the id.
Result<AddedToken> load_added_token(const Json& object);

// Reads the fields of a JSON object of a tokenizer file. Errors have the form of bad_file(), and
// name the object by `part`.
using Fields = JsonFields<Json, FileWording>;
Fields fields_of(const Json& object, std::string_view part);
std::string type_of(const Json& object);  // the member "type", or "?"
// Compiles a "pattern", which has the member "Regex" or "String". Errors name `part`.
Result<SplitPattern> compile_pattern(const Json& pattern, std::string_view part);
Error bad_file(const std::string& message);
Error unsupported(const std::string& message);

}  // namespace moex::tokenizer_json
