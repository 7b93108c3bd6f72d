// The grammar of an answer: optional thoughts of the model, then the form or the tool calls that
// the request asks for.
#pragma once

#include <memory>
#include <optional>

#include "hub/api/jobs/answer_mask.h"
#include "hub/api/jobs/channels.h"
#include "hub/api/jobs/tool_calls.h"
#include "hub/api/openai_request.h"
#include "hub/api/refusal.h"

namespace moex {

// The tags around a model's thoughts: `open` and `close` are set if the vocabulary has tokens for
// the tags; else the tags are plain characters.
struct ReasoningTags {
    bool possible = false;  // the answer may begin with a block of thoughts
    bool begun = false;     // the answer begins inside a block of thoughts
    std::optional<TokenId> open = {}, close = {};
    void find(const Tokenizer& tokenizer);
};

// The form and the tool calls that a request wants in its answer.
struct AnswerWish {
    const AnswerForm& form;
    const ToolChoice& calls;
    const CallSyntax& syntax;
    std::optional<ChannelBegin> channels = {};  // where an answer in channels begins
    bool is_free() const {
        return form.kind == AnswerForm::Kind::free && calls.mode == ToolChoice::Mode::none;
    }
    // The field of the request that asks for the form or the calls.
    const std::string& param() const;
};
// The grammar of an answer, and what it does not hold.
struct AnswerRules {
    std::shared_ptr<const Grammar> grammar;
    WeakenedTools weakened;
};
// Builds the rules of an answer, or takes them from the cache of `masks`.
Checked<std::shared_ptr<const AnswerRules>> rules_of_answer(const AnswerWish& wish,
                                                            const ReasoningTags& tags,
                                                            MaskMaker& masks);

// Makes the refusal of an answer whose shortest text exceeds the room that max_tokens and the
// context leave.
Refusal too_short(const AnswerWish& wish, const std::string& max_tokens_param,
                  std::uint64_t least_tokens, std::uint64_t room_tokens);

}  // namespace moex
