// Prompts for filling in the middle: a model that was trained for it writes the text between a
// prefix and a suffix, as editors ask for it.
//
// The problem: each family of models marks the parts with tokens of its own, and some want the
// suffix first. The way taken: the marks are looked up in the tokenizer, whose tokens no ordinary
// text has. Example (Qwen), for the cursor inside "a = |\nprint(a)":
//   <|fim_prefix|>a = <|fim_suffix|>\nprint(a)<|fim_middle|>
// Other files of the editor's project come before the prompt, with the family's tokens for files
// if it has them.
// Limits: that a tokenizer has the tokens does not prove that the model was trained with them.
// Source: Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", 2022; the
// model cards of Qwen2.5-Coder, DeepSeek-Coder, StarCoder2, CodeLlama, CodeGemma and Codestral;
// llama.cpp's server, README.md, POST /infill.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// A file of the editor's project other than the edited one.
struct ContextFile {
    std::string name;  // may be empty
    std::string text;
};

// The tokens with which a family of models marks the parts of such a prompt.
struct FillMiddle {
    const char* family = "";
    TokenId prefix = 0, suffix = 0;
    std::optional<TokenId> middle;            // ends the prompt; Codestral has none
    bool suffix_first = false;                // SUFFIX suffix PREFIX prefix, as Codestral wants it
    std::optional<TokenId> repository, file;  // tokens before the project's name and a file's name
    std::vector<TokenId> stops;  // tokens that end the text in the middle, beside the model's own
};

// Finds the tokens of a family in the vocabulary; nullopt: it has none of a known family.
std::optional<FillMiddle> find_fill_middle(const Tokenizer& tokenizer);

// The parts of a prompt around the place of the answer.
struct MiddleParts {
    std::vector<TokenId> prefix, suffix;
    std::vector<ContextFile> files;
};
struct MiddlePrompt {
    std::vector<TokenId> ids;
    bool was_cut = false;  // the parts were longer than the prompt may be
};
// Makes the prompt. A prompt of more than `tokens_max` tokens is cut: first files are left out, the
// first one first, then the prefix keeps its end and the suffix its begin, 3 to 1.
MiddlePrompt make_middle_prompt(const FillMiddle& marks, const Tokenizer& tokenizer,
                                MiddleParts parts, std::size_t tokens_max);

// Tokenises a text that follows other text: a SentencePiece vocabulary adds no space before it.
std::vector<TokenId> encode_inside(const Tokenizer& tokenizer, const std::string& words);

}  // namespace moex
