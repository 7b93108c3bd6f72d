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

#include "hub/api/refusal.h"
#include "hub/api/text_inputs.h"
#include "hub/engine/sampler.h"
#include "hub/model/json_fields.h"
#include "hub/model/package/package.h"

namespace moex {

// The form that an answer has to have.
struct AnswerForm {
    enum class Kind { free, json_object, json_schema, grammar };
    Kind kind = Kind::free;
    OrderedJson schema;   // for json_schema
    std::string grammar;  // for grammar: GBNF
    std::string param;    // the field of the body that asks for the form
};

// A function that a chat may call.
struct Tool {
    std::string name;
    OrderedJson parameters;  // schema of the arguments, of type object
};
// The functions of a request, and whether the answer may or has to call them.
struct ToolChoice {
    enum class Mode { none, automatic, required };
    Mode mode = Mode::none;
    std::vector<Tool> tools;
    std::string name;      // the only function that may be called; empty: any
    bool parallel = true;  // one answer may have several calls
};

struct CompletionParams {
    bool is_chat = false;
    std::string model;  // empty: the request names none
    // The names that the client's dialect has for two fields, for later error messages.
    std::string source = "messages", max_tokens_param = "max_tokens";
    bool stream = false, include_usage = false;
    std::uint32_t n = 1;
    std::optional<std::uint32_t> max_tokens;  // 0: only the echo or the prompt's scores
    SamplingOptions sampling;                 // the seed is always set
    std::vector<std::string> stop;
    AnswerForm form;
    bool logprobs = false;
    std::uint32_t top_logprobs = 0;
    bool echo = false;  // completions: the text begins with the prompt
    // Number of likeliest tokens for each place of the prompt, which is scored then.
    std::optional<std::uint32_t> prompt_logprobs;
    // chat
    // [{role, content: string}, ...]. A message of the assistant may have reasoning_content (a
    // string) and tool_calls; a message of a tool may have tool_call_id and name.
    OrderedJson messages;
    ToolChoice calls;
    OrderedJson tools;                  // as the template gets them; null: none
    bool add_generation_prompt = true;  // the template opens a turn of the assistant
    bool continues = false;             // the last message is the beginning of the answer
    bool splits_reasoning = true;       // thoughts go to reasoning_content instead of content
    OrderedJson template_variables;     // chat_template_kwargs
    std::string reasoning_effort;       // empty: not requested
    // completions: one or several prompts, as text or ids
    std::vector<TextInput> prompts;
};

struct ParamLimits {
    std::uint32_t n_max = 8;
    std::uint32_t body_bytes_max = 1u << 20;
    std::size_t vocab_size = 0;            // bound of ids in logit_bias and prompts
    const Tokenizer* tokenizer = nullptr;  // for logit_bias by text; null: refused by name
    GenerationDefaults defaults;
    bool prefer_greedy = false;
    std::uint64_t seed = 0;  // for requests that name none
};

// Parses JSON within bounds on size and depth, as valid UTF-8. Any failure is a 4xx within
// milliseconds.
Checked<OrderedJson> parse_api_body(std::string_view body, std::uint32_t bytes_max);
// Reads a body of /v1/chat/completions. Other dialects are translated into such a body first, so
// that every value is checked here.
Checked<CompletionParams> read_chat_params(const OrderedJson& body, const ParamLimits& limits);
Checked<CompletionParams> read_completion_params(const OrderedJson& body,
                                                 const ParamLimits& limits);
// The same from the bytes of a body.
Checked<CompletionParams> parse_chat_params(std::string_view body, const ParamLimits& limits);
Checked<CompletionParams> parse_completion_params(std::string_view body, const ParamLimits& limits);

}  // namespace moex
