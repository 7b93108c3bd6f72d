// The grammar of an answer: what the request asks for, behind the model's thoughts where it has
// any.
#pragma once

#include <memory>
#include <optional>

#include "hub/api/jobs/answer_mask.h"
#include "hub/api/jobs/channels.h"
#include "hub/api/jobs/tool_calls.h"
#include "hub/api/openai_request.h"
#include "hub/api/refusal.h"

namespace moex {

// Around a model's thoughts. Tokens where the vocabulary has them, else their characters.
struct ReasoningTags {
    bool possible = false;  // the answer may begin with a block
    bool begun = false;     // it begins inside one
    std::optional<TokenId> open = {}, close = {};
    void find(const Tokenizer& tokenizer);
};

// What a request wants of its answer.
struct AnswerWish {
    const AnswerForm& form;
    const ToolChoice& calls;
    const CallSyntax& syntax;
    std::optional<ChannelBegin> channels = {};  // where an answer in channels begins
    bool is_free() const {
        return form.kind == AnswerForm::Kind::free && calls.mode == ToolChoice::Mode::none;
    }
    const std::string& param() const;  // the field that asks for it
};
Checked<std::shared_ptr<const Grammar>> grammar_of_answer(const AnswerWish& wish,
                                                          const ReasoningTags& tags,
                                                          MaskMaker& masks);

// The answer cannot be as short as it would have to be.
Refusal too_short(const AnswerWish& wish, const std::string& max_tokens_param,
                  std::uint64_t least_tokens, std::uint64_t room_tokens);

}  // namespace moex
