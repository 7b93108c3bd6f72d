// logit_bias: which tokens an answer shall have more or less of.
// OpenAI's object of ids, {"5": 1}, and llama.cpp's list of pairs, [[5, 1], ["ship", -2]]; a key of
// the object that is no number is text, as in the list. A text stands for every token that it is
// made of where it stands alone: " ship" and "ship" are different ones, and a text of several
// tokens biases each of them wherever it may come, not only behind the one before. A special
// token is named by its text. The last to name a token counts.
// Source: OpenAI API reference; llama.cpp's server, README.md, logit_bias.
#pragma once

#include <map>

#include "hub/api/body_fields.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// `tokenizer`: null refuses texts by name. Whatever is wrong becomes the fields' problem.
std::map<TokenId, float> read_logit_bias(BodyFields& fields, std::size_t vocab_size,
                                         const Tokenizer* tokenizer);

}  // namespace moex
