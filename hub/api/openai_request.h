// What an OpenAI client may send, as typed values: every
// field checked once, each error naming its parameter.
// Unknown fields are ignored; fields that mean something we
// cannot do are refused by name, never dropped in silence.
// Source: OpenAI API reference, chat completions and completions;
// vLLM and llama.cpp for top_k, min_p and repetition penalty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/api/refusal.h"
#include "hub/api/text_inputs.h"
#include "hub/engine/sampler.h"
#include "hub/model/json_fields.h"
#include "hub/model/package/package.h"

namespace moex {

// What an answer has to be.
struct AnswerForm {
    enum class Kind { free, json_object, json_schema, grammar };
    Kind kind = Kind::free;
    OrderedJson schema;   // of json_schema
    std::string grammar;  // GBNF
    std::string param;    // the field of the body that asks for it
};

// The functions that a chat may call, and whether it has to.
struct Tool {
    std::string name;
    OrderedJson parameters;  // the schema of its arguments, an object
};
struct ToolChoice {
    enum class Mode { none, automatic, required };
    Mode mode = Mode::none;
    std::vector<Tool> tools;
    std::string name;      // of the only one that may be called; empty: any
    bool parallel = true;  // several calls in one answer
};

struct CompletionParams {
    bool is_chat = false;
    std::string model;  // empty: not named
    // The client's names of two fields, for what is said of them later.
    std::string source = "messages", max_tokens_param = "max_tokens";
    bool stream = false, include_usage = false;
    std::uint32_t n = 1;
    std::optional<std::uint32_t> max_tokens;  // 0: nothing but the echo
    SamplingOptions sampling;                 // seed is always set
    std::vector<std::string> stop;
    AnswerForm form;
    bool logprobs = false;
    std::uint32_t top_logprobs = 0;
    bool echo = false;  // completions: the prompt in front of the text
    // The prompt is scored, with so many of the likeliest tokens at each place.
    std::optional<std::uint32_t> prompt_logprobs;
    // chat
    // [{role, content: string}, ...]; an assistant's may have reasoning_content, a string, and
    // tool_calls; a tool's may have tool_call_id and name
    OrderedJson messages;
    ToolChoice calls;
    OrderedJson tools;                  // as the template sees them; null: none
    bool add_generation_prompt = true;  // the template opens the assistant's turn
    bool continues = false;             // the last message is the beginning of the answer
    bool splits_reasoning = true;       // reasoning_content apart from content
    OrderedJson template_variables;     // chat_template_kwargs
    std::string reasoning_effort;       // empty: not asked for
    // completions: one or several prompts, as text or ids
    std::vector<TextInput> prompts;
};

struct ParamLimits {
    std::uint32_t n_max = 8;
    std::uint32_t body_bytes_max = 1u << 20;
    std::size_t vocab_size = 0;            // for logit_bias and prompts of ids
    const Tokenizer* tokenizer = nullptr;  // for logit_bias by text; null refuses it by name
    GenerationDefaults defaults;
    bool prefer_greedy = false;
    std::uint64_t seed = 0;  // where the request names none
};

// JSON within bounds: size, depth, UTF-8. Any failure is a 4xx within milliseconds.
Checked<OrderedJson> parse_api_body(std::string_view body, std::uint32_t bytes_max);
// Other dialects are read into such a body first, so that every value is checked here.
Checked<CompletionParams> read_chat_params(const OrderedJson& body, const ParamLimits& limits);
Checked<CompletionParams> read_completion_params(const OrderedJson& body,
                                                 const ParamLimits& limits);
// The same from a body's bytes.
Checked<CompletionParams> parse_chat_params(std::string_view body, const ParamLimits& limits);
Checked<CompletionParams> parse_completion_params(std::string_view body, const ParamLimits& limits);

}  // namespace moex
