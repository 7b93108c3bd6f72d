// Texts or token ids in a request's body, as OpenAI's clients send the prompts of completions and
// the inputs of embeddings: one text, several, the ids of one, or the ids of several.
#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "hub/api/body_fields.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

using TextInput = std::variant<std::string, std::vector<TokenId>>;

struct TextInputLimits {
    std::size_t count_max = 8;
    std::size_t vocab_size = 0;
};

// The required member `name`, at least one; what is wrong with it becomes the fields' problem.
std::vector<TextInput> read_text_inputs(BodyFields& fields, const char* name,
                                        const TextInputLimits& limits);

}  // namespace moex
