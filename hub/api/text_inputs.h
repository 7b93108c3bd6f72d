// Reads texts or token ids from a request's body, as OpenAI's clients send the prompts of
// completions and the inputs of embeddings: "a", ["a", "b"], [1, 2] (the ids of one text), or [[1,
// 2], [3]].
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

// Reads the required member `name`, which must have at least one input. An error is kept in
// `fields` as the problem of the request.
std::vector<TextInput> read_text_inputs(BodyFields& fields, const char* name,
                                        const TextInputLimits& limits);

}  // namespace moex
