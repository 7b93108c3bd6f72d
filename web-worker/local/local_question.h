// A question of the page for this device, read from JSON with the field names of
// /v1/chat/completions. Fields that the JSON omits take the defaults of the model's makers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/engine/sampler.h"
#include "hub/model/package/generation_defaults.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "protocol/result.h"

namespace moex {

// One question, checked and with all defaults filled in.
struct LocalQuestion {
    // [{role, content}, ...]; if the last message is from the assistant, the answer continues it.
    nlohmann::ordered_json messages;
    std::optional<std::uint32_t> max_tokens;  // nullopt: the answer may fill the context
    std::vector<std::string> stops;
    SamplingOptions sampling;
    std::string reasoning_effort;  // effort level; empty: the chat template's default
    // Tokens to draft in each step (moex.speculative); 0: none; nullopt: as many as pay.
    std::optional<std::uint32_t> draft_tokens;
};

// Returns invalid_argument with the name of an invalid field, or of a field that only the hub
// supports: a form of answers (tools, response_format, grammar), several answers,
// log-probabilities.
Result<LocalQuestion> read_question(const nlohmann::ordered_json& body,
                                    const GenerationDefaults& defaults, const Tokenizer& tokenizer,
                                    std::uint32_t vocab_size);

}  // namespace moex
