#include "hub/api/openai_request.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "hub/api/body_fields.h"
#include "hub/api/json_body.h"
#include "hub/api/logit_bias.h"
#include "hub/api/request_parts.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

// Reads stop strings: as many as the bound on their bytes allows.
void read_stop(BodyFields& fields, std::vector<std::string>& out) {
    const OrderedJson* stop = fields.find("stop");
    if (!stop) return;
    constexpr std::size_t stop_bytes_max = 1024, stops_bytes_max = 16 << 10;

    std::size_t bytes = 0;
    for (const OrderedJson& one : stop->is_array() ? *stop : OrderedJson::array({*stop})) {
        if (!one.is_string()) return fields.wrong("stop", "a string or an array of strings", one);
        out.push_back(one.get<std::string>());
        bytes += out.back().size();
        if (out.back().size() > stop_bytes_max)
            return fields.refuse(
                text("Invalid value for 'stop': longer than ", stop_bytes_max, " bytes."),
                "invalid_value", "stop");
    }
    if (bytes > stops_bytes_max)
        return fields.refuse(text("'stop' has ", bytes, " bytes in all its strings, at most ",
                                  stops_bytes_max, " are allowed."),
                             "invalid_value", "stop");

    // Drop empty stop strings: they would end every answer at once, and clients send an empty
    // string to mean no stop string.
    std::erase(out, std::string());
}

void read_ids(BodyFields& fields, const char* name, std::size_t vocab_size, std::size_t ids_max,
              std::vector<TokenId>& out) {
    const OrderedJson* ids = fields.find(name);
    if (!ids) return;
    const std::string wanted = text("at most ", ids_max, " token ids below ", vocab_size);
    if (!ids->is_array() || ids->size() > ids_max) return fields.wrong(name, wanted, *ids);
    for (const OrderedJson& one : *ids) {
        if (!one.is_number_unsigned() || one.get<std::uint64_t>() >= vocab_size)
            return fields.wrong(name, wanted, one);
        out.push_back(one.get<TokenId>());
    }
}

// Returns the tokens of an unwanted word: at the begin of a line, and behind a blank. "ship" gives
// [["sh", "ip"], [" ship"]], if the vocabulary has no token "ship".
std::vector<std::vector<TokenId>> tokens_of_word(const Tokenizer& tokenizer,
                                                 const std::string& word) {
    const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
    std::vector<std::vector<TokenId>> out;
    for (const std::string& spelled : {bare, " " + bare}) {
        std::vector<TokenId> ids = tokenizer.encode(spelled, SpecialTokens::as_text);
        if (!ids.empty() && std::find(out.begin(), out.end(), ids) == out.end())
            out.push_back(std::move(ids));
    }
    return out;
}

// Reads the words that the answer must not have.
void read_bad_words(BodyFields& fields, const Tokenizer* tokenizer, TokenBounds& out) {
    constexpr const char* name = "bad_words";
    const OrderedJson* const words = fields.find(name);
    if (!words || (words->is_array() && words->empty())) return;
    constexpr std::size_t words_max = 256, bytes_max = 256;
    const std::string wanted = text("at most ", words_max, " words of 1 to ", bytes_max, " bytes");
    if (!words->is_array() || words->size() > words_max) return fields.wrong(name, wanted, *words);
    if (!tokenizer) return fields.unsupported(name, "the model has no tokenizer.");
    for (const OrderedJson& one : *words) {
        const bool is_word = one.is_string() && one != "" &&
                             one.get_ref<const std::string&>().size() <= bytes_max;
        if (!is_word) return fields.wrong(name, wanted, one);
        for (auto& ids : tokens_of_word(*tokenizer, one.get<std::string>()))
            out.bad_words.push_back(std::move(ids));
    }
}

// Reads vLLM's bounds on the tokens of an answer.
void read_bounds(BodyFields& fields, const ParamLimits& limits, CompletionParams& out) {
    constexpr std::size_t stops_max = 256, suppressed_max = 4096;
    constexpr std::int64_t tokens_max = 1'000'000'000;
    // Tokens that end the answer as the model's own end does.
    read_ids(fields, "stop_token_ids", limits.vocab_size, stops_max, out.stop_ids);
    read_ids(fields, "suppress_tokens", limits.vocab_size, suppressed_max, out.bounds.suppressed);
    read_bad_words(fields, limits.tokenizer, out.bounds);
    fields.boolean("ignore_eos", out.bounds.ignores_end);
    fields.whole("min_tokens", 0, tokens_max, out.bounds.min_tokens);
    if (out.max_tokens && out.bounds.min_tokens > *out.max_tokens)
        fields.refuse(text("'min_tokens' is ", out.bounds.min_tokens, ", above the ",
                           *out.max_tokens, " tokens that the answer may have."),
                      "invalid_value", "min_tokens");
}

constexpr std::int64_t tokens_max = 1'000'000'000;

// Reads the most tokens that the answer may have; n_predict is llama.cpp's name.
void read_max_tokens(BodyFields& fields, CompletionParams& out) {
    for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
        // -1 means the rest of the context, as LM Studio's and llama.cpp's clients write it.
        const OrderedJson* const tokens = fields.find(name);
        if (!tokens || *tokens == -1) continue;
        // Allow 0 answer tokens if the prompt is echoed or scored: an evaluation needs the prompt's
        // scores and no answer.
        const std::int64_t tokens_min = out.echo || out.prompt_logprobs ? 0 : 1;
        fields.whole(name, tokens_min, tokens_max, out.max_tokens.emplace());
    }
}

void read_common(BodyFields& fields, const ParamLimits& limits, CompletionParams& out) {
    const GenerationDefaults& defaults = limits.defaults;
    SamplingOptions& sampling = out.sampling;
    sampling.temperature = defaults.do_sample && !limits.prefer_greedy ? defaults.temperature : 0.0;
    sampling.top_p = defaults.top_p;
    sampling.sample_top_k = defaults.sample_top_k;
    sampling.min_p = defaults.min_p;
    sampling.repetition_penalty = defaults.repetition_penalty;
    sampling.presence_penalty = defaults.presence_penalty;
    sampling.frequency_penalty = defaults.frequency_penalty;

    fields.string("model", out.model);
    fields.boolean("stream", out.stream);
    fields.boolean("return_progress", out.return_progress);
    fields.boolean("timings_per_token", out.timings_per_token);
    if (const OrderedJson* options = fields.find("stream_options")) {
        if (!options->is_object())
            fields.wrong("stream_options", "an object", *options);
        else if (!out.stream)
            fields.refuse("'stream_options' is only allowed when 'stream' is true.",
                          "invalid_value", "stream_options");
        else if (const auto usage = options->find("include_usage");
                 usage != options->end() && !usage->is_null()) {
            if (!usage->is_boolean())
                fields.wrong("stream_options.include_usage", "true or false", *usage);
            else
                out.include_usage = usage->get<bool>();
        }
    }

    if (fields.find("prompt_logprobs")) {
        constexpr std::int64_t top_max = 20;
        fields.whole("prompt_logprobs", 0, top_max, out.prompt_logprobs.emplace());
        if (out.stream) fields.unsupported("stream", "not together with 'prompt_logprobs'.");
    }

    read_max_tokens(fields, out);
    fields.whole("n", 1, limits.n_max, out.n);

    fields.real("temperature", 0, 2, sampling.temperature);
    fields.real("top_p", 0, 1, sampling.top_p);

    std::int64_t top_k = sampling.sample_top_k;
    fields.whole("top_k", -1, tokens_max, top_k);
    sampling.sample_top_k = top_k <= 0 ? 0 : static_cast<std::uint32_t>(top_k);

    fields.real("min_p", 0, 1, sampling.min_p);
    fields.real("presence_penalty", -2, 2, sampling.presence_penalty);
    fields.real("frequency_penalty", -2, 2, sampling.frequency_penalty);
    fields.real("repeat_penalty", 0.01, 100, sampling.repetition_penalty);
    fields.real("repetition_penalty", 0.01, 100, sampling.repetition_penalty);

    std::int64_t seed = static_cast<std::int64_t>(limits.seed);
    fields.whole(fields.find("seed") ? "seed" : "random_seed",  // Mistral's name
                 std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                 seed);
    sampling.seed = static_cast<std::uint64_t>(seed);

    std::string user;
    fields.string("user", user);
    read_stop(fields, out.stop);
    read_bounds(fields, limits, out);
    read_form(fields, out);
    sampling.logit_bias = read_logit_bias(fields, limits.vocab_size, limits.tokenizer);
    refuse_unsupported(fields, out);
    note_dropped(fields, out);
}

// Returns the member of a part that has its text; nullptr if the part has no text. Besides Chat
// Completions' parts, a history may have those of Responses and the thoughts of other programs.
const char* text_key(const std::string& type) {
    constexpr std::string_view texts[] = {"text",         "input_text",     "output_text",
                                          "summary_text", "reasoning_text", "reasoning"};
    if (type == "refusal") return "refusal";
    if (type == "thinking") return "thinking";
    return std::ranges::find(texts, type) == std::end(texts) ? nullptr : "text";
}

// Reads the text of a message: a string, null for an assistant or a tool, or parts with text. In
// the result of a tool (`describes`), a part of another kind becomes a sentence, since a refusal
// would end an agent's session.
void read_content(BodyFields& fields, const OrderedJson& content, bool may_be_null, bool describes,
                  const std::string& where, std::string& out) {
    if (content.is_string()) {
        out = content.get<std::string>();
    } else if (content.is_array()) {
        for (std::size_t i = 0; i < content.size(); ++i) {
            const OrderedJson& part = content[i];
            const std::string param = text(where, "[", i, "]");
            if (!part.is_object())
                return fields.wrong(param, "an object {\"type\":\"text\",\"text\":...}", part);

            const auto type = part.find("type");
            if (type == part.end() || !type->is_string())
                return fields.wrong(text(param, ".type"), "\"text\"",
                                    type == part.end() ? OrderedJson() : *type);
            const char* const key = text_key(type->get_ref<const std::string&>());
            if (!key && describes) {
                out += text("[", type->get_ref<const std::string&>(),
                            ": this model reads text only]");
                continue;
            }
            if (!key)
                return fields.unsupported(
                    text(param, ".type"),
                    text("only parts of type text are, found ", json_excerpt(*type), "."));

            const auto value = part.find(key);
            if (value == part.end() || !value->is_string())
                return fields.wrong(text(param, '.', key), "a string",
                                    value == part.end() ? OrderedJson() : *value);
            out += value->get_ref<const std::string&>();
        }
    } else if (!(content.is_null() && may_be_null)) {
        fields.wrong(where, "a string or an array of text parts", content);
    }
}

// Reads an earlier answer's reasoning from DeepSeek's field, or else from OpenRouter's field.
void read_reasoning(BodyFields& fields, const OrderedJson& message, const std::string& where,
                    OrderedJson& out) {
    for (const char* name : {"reasoning_content", "reasoning"}) {
        const OrderedJson& reasoning = member(message, name);
        if (reasoning.is_null()) continue;
        if (!reasoning.is_string())
            return fields.wrong(text(where, '.', name), "a string", reasoning);
        if (reasoning == "" && out.contains("reasoning_content")) continue;
        out["reasoning_content"] = reasoning;
        if (reasoning != "") return;
    }
}

void read_messages(BodyFields& fields, CompletionParams& out) {
    const OrderedJson* messages = fields.find("messages");
    if (!messages)
        return fields.refuse("Missing required parameter: 'messages'.",
                             "missing_required_parameter", "messages");

    if (!messages->is_array() || messages->empty())
        return fields.wrong("messages", "a non-empty array of messages", *messages);

    constexpr std::size_t messages_max = 4096;
    if (messages->size() > messages_max)
        return fields.refuse(text("'messages' has ", messages->size(), " entries, at most ",
                                  messages_max, " are allowed."),
                             "invalid_value", "messages");

    out.messages = OrderedJson::array();
    for (std::size_t i = 0; i < messages->size(); ++i) {
        const OrderedJson& message = (*messages)[i];
        const std::string where = text("messages[", i, "]");
        if (!message.is_object())
            return fields.wrong(where, "an object with role and content", message);

        const auto role = message.find("role");
        if (role == message.end())
            return fields.refuse(text("Missing required parameter: '", where, ".role'."),
                                 "missing_required_parameter", text(where, ".role"));
        if (!role->is_string())
            return fields.wrong(text(where, ".role"), "\"system\", \"user\" or \"assistant\"",
                                *role);

        std::string name = role->get<std::string>();
        if (name == "developer") name = "system";
        if (name == "function") name = "tool";
        if (name != "system" && name != "user" && name != "assistant" && name != "tool")
            return fields.wrong(text(where, ".role"),
                                "\"system\", \"user\", \"assistant\" or \"tool\"", *role);

        const auto content = message.find("content");
        std::string content_text;
        if (content == message.end() && name != "assistant" && name != "tool")
            return fields.refuse(text("Missing required parameter: '", where, ".content'."),
                                 "missing_required_parameter", text(where, ".content"));

        if (content != message.end())
            read_content(fields, *content, name == "assistant" || name == "tool", name == "tool",
                         text(where, ".content"), content_text);
        if (fields.problem()) return;
        out.messages.push_back({{"role", name}, {"content", content_text}});
        if (name == "assistant")
            read_calls(fields, message, text(where, ".tool_calls"), out.messages.back());
        for (const char* field : {"tool_call_id", "name"})
            if (const auto given = message.find(field);
                name == "tool" && given != message.end() && given->is_string())
                out.messages.back()[field] = *given;
        if (fields.problem()) return;

        if (name == "assistant") read_reasoning(fields, message, where, out.messages.back());
        if (fields.problem()) return;
    }
}

// Decides whether the answer is a new turn of the assistant or continues the last message. The
// fields add_generation_prompt and continue_final_message mean the same as in transformers and
// vLLM. If both are missing, a last message of the assistant is continued.
void read_turn(BodyFields& fields, CompletionParams& out) {
    const OrderedJson* asked_new = fields.find("add_generation_prompt");
    const OrderedJson* asked_rest = fields.find("continue_final_message");
    bool adds = asked_new == nullptr, continues = false;
    fields.boolean("add_generation_prompt", adds);
    fields.boolean("continue_final_message", continues);
    if (fields.problem()) return;

    if (asked_new && adds && continues)
        return fields.refuse(
            "'continue_final_message' and 'add_generation_prompt' cannot both be true.",
            "invalid_value", "continue_final_message");

    const OrderedJson& last = out.messages.back();
    const bool ends_in_answer = last["role"] == "assistant" && !last.contains("tool_calls");
    if (continues && !ends_in_answer)
        return fields.refuse("'continue_final_message' needs a last message of the assistant.",
                             "invalid_value", "continue_final_message");

    const bool keeps_turn = asked_rest ? continues : ends_in_answer && !(asked_new && adds);
    out.add_generation_prompt = adds && !keeps_turn;
    out.continues = keeps_turn;

    // Drop an empty last message of the assistant: the answer is then a new turn.
    const bool is_empty = last["content"] == "" && last.value("reasoning_content", "").empty();
    if (keeps_turn && is_empty && out.messages.size() > 1) {
        out.messages.erase(out.messages.size() - 1);
        out.continues = false;
        out.add_generation_prompt = true;
    }
}

void read_reasoning_format(BodyFields& fields, CompletionParams& out) {
    std::string format = "auto";
    fields.string("reasoning_format", format);
    if (format != "auto" && format != "deepseek" && format != "none")
        fields.wrong("reasoning_format", "\"auto\", \"deepseek\" or \"none\"", OrderedJson(format));
    out.splits_reasoning = format != "none";
}

// Reads the level of reasoning effort, also in OpenRouter's form ({"reasoning": {"effort"}}). A
// level is dropped if the chat template has no such setting.
void read_effort(BodyFields& fields, CompletionParams& out) {
    const OrderedJson* effort = fields.find("reasoning_effort");
    if (const OrderedJson* reasoning = fields.find("reasoning")) {
        if (!reasoning->is_object())
            return fields.wrong("reasoning", "an object {\"effort\": ...}", *reasoning);
        const bool is_off = member(*reasoning, "enabled") == false;
        if (!effort) {
            static const OrderedJson off = "none";
            effort = is_off ? &off : &member(*reasoning, "effort");
            out.effort_param = "reasoning.effort";
        }
        for (const char* name : {"max_tokens", "exclude"})
            if (const OrderedJson& value = member(*reasoning, name);
                !value.is_null() && value != false)
                out.notes["dropped"].push_back(text("reasoning.", name));
    }
    // gpt-oss's clients set the template's variable.
    constexpr const char* variable = "reasoning_effort";
    if ((!effort || effort->is_null()) && out.template_variables.contains(variable)) {
        effort = &out.template_variables[variable];
        out.effort_param = text("chat_template_kwargs.", variable);
    }
    if (!effort || effort->is_null() || *effort == "") return;
    constexpr std::string_view levels[] = {"none", "minimal", "low", "medium",
                                           "high", "xhigh",   "max"};
    if (!effort->is_string() || std::ranges::find(levels, *effort) == std::end(levels))
        return fields.wrong(
            out.effort_param,
            "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"", *effort);
    out.reasoning_effort = effort->get<std::string>();
}

// Reads further variables of the chat template. Variables that the hub sets itself are not
// overwritten.
void read_template_variables(BodyFields& fields, CompletionParams& out) {
    out.template_variables = OrderedJson::object();
    const OrderedJson* variables = fields.find("chat_template_kwargs");
    if (!variables) return;
    if (!variables->is_object())
        return fields.wrong("chat_template_kwargs", "an object", *variables);

    for (const auto& [key, value] : variables->items())
        if (key != "messages" && key != "add_generation_prompt" && key != "bos_token" &&
            key != "eos_token")
            out.template_variables[key] = value;
}

void read_prompts(BodyFields& fields, const ParamLimits& limits, CompletionParams& out) {
    out.prompts = read_text_inputs(fields, "prompt",
                                   {.count_max = limits.n_max, .vocab_size = limits.vocab_size});

    if (out.prompts.size() * out.n > limits.n_max)
        fields.refuse(text("'n' times the number of prompts is ", out.prompts.size() * out.n,
                           ", at most ", limits.n_max, " are allowed."),
                      "invalid_value", "n");
}

// Reads the suffix of a completion. An empty suffix asks for a plain completion.
void read_suffix(BodyFields& fields, CompletionParams& out) {
    MiddleWish wish;
    fields.string("suffix", wish.suffix);
    if (wish.suffix.empty()) return;
    if (out.echo) fields.unsupported("echo", "not together with 'suffix'.");
    out.middle = std::move(wish);
}

}  // namespace

Checked<CompletionParams> read_chat_params(const OrderedJson& body, const ParamLimits& limits) {
    BodyFields fields(body);
    CompletionParams params;
    params.is_chat = true;
    read_messages(fields, params);
    read_tools(fields, params);
    read_common(fields, limits, params);

    fields.boolean("logprobs", params.logprobs);
    constexpr std::int64_t top_logprobs_max = 20;
    fields.whole("top_logprobs", 0, top_logprobs_max, params.top_logprobs);
    if (params.top_logprobs > 0 && !params.logprobs)
        fields.refuse("'top_logprobs' needs 'logprobs' to be true.", "invalid_value",
                      "top_logprobs");

    read_template_variables(fields, params);
    if (!fields.problem()) read_turn(fields, params);
    read_reasoning_format(fields, params);
    read_effort(fields, params);
    if (fields.problem()) return *fields.problem();
    return params;
}

Checked<CompletionParams> read_completion_params(const OrderedJson& body,
                                                 const ParamLimits& limits) {
    BodyFields fields(body);
    CompletionParams params;
    params.source = "prompt";
    fields.boolean("echo", params.echo);
    read_common(fields, limits, params);
    read_prompts(fields, limits, params);
    read_suffix(fields, params);

    if (const OrderedJson* logprobs = fields.find("logprobs");
        logprobs && !(logprobs->is_boolean() && !logprobs->get<bool>())) {
        constexpr std::int64_t top_logprobs_max = 20;
        fields.whole("logprobs", 0, top_logprobs_max, params.top_logprobs);
        params.logprobs = true;
    }
    if (params.echo && params.logprobs && params.stream)
        fields.unsupported("stream", "not together with 'echo' and 'logprobs'.");
    if (fields.problem()) return *fields.problem();
    return params;
}

Checked<CompletionParams> parse_chat_params(std::string_view body, const ParamLimits& limits) {
    MOEX_OR_REFUSE(object, parse_api_body(body, limits.body_bytes_max));
    return read_chat_params(object, limits);
}

Checked<CompletionParams> parse_completion_params(std::string_view body,
                                                  const ParamLimits& limits) {
    MOEX_OR_REFUSE(object, parse_api_body(body, limits.body_bytes_max));
    return read_completion_params(object, limits);
}

}  // namespace moex
