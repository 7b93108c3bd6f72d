// Reads logit_bias, which makes tokens more or less likely in an answer.
// Two forms are read: OpenAI's object of ids, {"5": 1}, and llama.cpp's list of pairs,
// [[5, 1], ["ship", -2]]. A key of the object that is no number is a text, as in the list.
// A text means every token that the text alone is made of: " ship" and "ship" have different
// tokens. A text of several tokens biases each token wherever it occurs, not only after the
// preceding one. A special token is named by its text. The last entry for a token counts.
// Source: OpenAI API reference; llama.cpp's server, README.md, logit_bias.
#pragma once

#include <map>

#include "hub/api/body_fields.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// Without a `tokenizer` (null), texts are refused, and the error names them. An error is kept in
// `fields` as the problem of the request.
std::map<TokenId, float> read_logit_bias(BodyFields& fields, std::size_t vocab_size,
                                         const Tokenizer* tokenizer);

}  // namespace moex
