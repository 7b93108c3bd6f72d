// What a request asks of its answer, as typed values that every dialect fills in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/api/fill_middle.h"
#include "hub/api/text_inputs.h"
#include "hub/engine/sampler.h"
#include "hub/model/json_fields.h"

namespace moex {

// The form that a request demands of its answer: free text, JSON, or a grammar.
struct AnswerForm {
    enum class Kind { free, json_object, json_schema, grammar, regex, choice };
    Kind kind = Kind::free;
    OrderedJson schema;   // for json_schema; for choice: the list of texts
    std::string grammar;  // for grammar: GBNF; for regex: the pattern of the whole text
    std::string param;    // name of the body's field that asks for the form
    // Schemas are read by the standard: an object may have members that no keyword names
    // (SchemaReading::closes_objects).
    bool opens_objects = false;
    bool is_json() const { return kind == Kind::json_object || kind == Kind::json_schema; }
};

// Tokens that an answer must not have, beside its form: no end before min_tokens, words that are
// not written (bad_words), and tokens that do not occur (suppress_tokens). Source: vLLM's sampling
// parameters min_tokens, ignore_eos and bad_words.
struct TokenBounds {
    std::uint32_t min_tokens = 0;     // the answer does not end before it has as many tokens
    bool ignores_end = false;         // the model's own end is never written
    std::vector<TokenId> suppressed;  // tokens that never occur
    // Tokens of each unwanted word. The last token of a word does not follow the others.
    std::vector<std::vector<TokenId>> bad_words;
    bool any() const {
        return min_tokens > 0 || ignores_end || !suppressed.empty() || !bad_words.empty();
    }
};

// A function (tool) that the answer of a chat may call.
struct Tool {
    std::string name;
    OrderedJson parameters;  // schema of the arguments, of type object
    // True: a schema that the grammar does not hold is refused. False: the grammar is weakened.
    bool is_strict = false;
};
// The functions of a request, and whether the answer may call a function, or has to.
struct ToolChoice {
    enum class Mode { none, automatic, required };
    Mode mode = Mode::none;
    std::vector<Tool> tools;
    std::string name;            // the only function that may be called; empty: any function
    bool parallel = true;        // one answer may have several tool calls
    bool opens_objects = false;  // as AnswerForm::opens_objects, for the tools' schemas
};

// The texts around the text that a completion writes. The prompt comes before that text.
struct MiddleWish {
    std::string suffix;
    std::string prompt_end;          // more of the prefix, which a cut keeps (llama.cpp's `prompt`)
    std::vector<ContextFile> files;  // other files of the project
    std::string param = "suffix";    // name of the field that asks for it
    bool may_cut = false;            // a prompt that is too long is cut instead of refused
    bool was_cut = false;            // set when the prompt is made
};

struct CompletionParams {
    bool is_chat = false;
    std::string model;  // empty: the request names no model
    // The names that the client's dialect has for the fields messages and max_tokens, for later
    // error messages.
    std::string source = "messages", max_tokens_param = "max_tokens";
    std::string effort_param = "reasoning_effort";
    bool stream = false, include_usage = false;
    // Events of a stream report how much of the prompt is computed, and each piece of text the
    // times so far.
    bool return_progress = false, timings_per_token = false;
    std::uint32_t n = 1;
    std::optional<std::uint32_t> max_tokens;  // 0: no answer, only the prompt's echo or scores
    SamplingOptions sampling;                 // `sampling.seed` is always set
    std::vector<std::string> stop;
    std::vector<TokenId> stop_ids;  // tokens that end the answer, in addition to the model's own
    TokenBounds bounds;             // tokens that the answer must not have
    AnswerForm form;
    bool logprobs = false;
    std::uint32_t top_logprobs = 0;
    bool echo = false;  // in completions: the answer's text begins with the prompt
    // Number of likeliest tokens to return for each position of the prompt. If it is set, the
    // prompt is scored.
    std::optional<std::uint32_t> prompt_logprobs;
    // The messages of a chat: [{role, content: string}, ...]. A message of the assistant may have
    // reasoning_content (a string) and tool_calls; a message of a tool may have tool_call_id and
    // name.
    OrderedJson messages;
    ToolChoice calls;
    OrderedJson tools;                  // tools as the chat template gets them; null: no tools
    bool add_generation_prompt = true;  // the chat template opens a new turn of the assistant
    bool continues = false;             // the answer continues the last message
    bool splits_reasoning = true;       // thoughts go to reasoning_content instead of content
    OrderedJson template_variables;     // chat_template_kwargs
    std::string reasoning_effort;       // empty: not requested
    // prompts of a completion, as text or ids
    std::vector<TextInput> prompts;
    std::optional<MiddleWish> middle;  // set: the answer is written between the prompt and a suffix
    // Parts of the request that the answer does without. The reply's `moex` object names them:
    // {"left_out": [{"type", "name"}], "weakened": [{"tool", "path", "keyword"}], "dropped":
    // [name]}
    OrderedJson notes = OrderedJson::object();
};

}  // namespace moex
