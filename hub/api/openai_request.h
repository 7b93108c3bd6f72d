// The requests of OpenAI clients as typed values. Every field is checked once, and each error names
// its parameter. Unknown fields are ignored. A field that asks for something that the hub cannot do
// is refused by name, never dropped in silence.
// Source: OpenAI API reference, chat completions and completions;
// vLLM and llama.cpp for top_k, min_p and repetition penalty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/api/completion_params.h"
#include "hub/api/json_body.h"
#include "hub/api/refusal.h"
#include "hub/model/json_fields.h"
#include "hub/model/package/package.h"

namespace moex {

struct ParamLimits {
    std::uint32_t n_max = 8;
    std::uint32_t body_bytes_max = 1u << 20;
    std::size_t vocab_size = 0;  // ids in logit_bias and in prompts must be smaller
    // Reads texts in logit_bias; null: such texts are refused.
    const Tokenizer* tokenizer = nullptr;
    GenerationDefaults defaults;
    bool prefer_greedy = false;
    std::uint64_t seed = 0;  // seed of requests that name none
};

// Reads a body of /v1/chat/completions. Other dialects are translated into such a body first, so
// that every value is checked here.
Checked<CompletionParams> read_chat_params(const OrderedJson& body, const ParamLimits& limits);
Checked<CompletionParams> read_completion_params(const OrderedJson& body,
                                                 const ParamLimits& limits);
// Parse the bytes of a body, and then read the body as read_chat_params() or
// read_completion_params() does.
Checked<CompletionParams> parse_chat_params(std::string_view body, const ParamLimits& limits);
Checked<CompletionParams> parse_completion_params(std::string_view body, const ParamLimits& limits);

}  // namespace moex
