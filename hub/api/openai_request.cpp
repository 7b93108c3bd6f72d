#include "hub/api/openai_request.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "hub/api/body_fields.h"
#include "hub/api/logit_bias.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

void read_stop(BodyFields& fields, std::vector<std::string>& out) {
    const OrderedJson* stop = fields.find("stop");
    if (!stop) return;
    constexpr std::size_t stop_max = 4, stop_bytes_max = 1024;

    if (stop->is_string()) {
        out.push_back(stop->get<std::string>());
    } else if (stop->is_array()) {
        if (stop->size() > stop_max) return fields.wrong("stop", "at most 4 strings", *stop);
        for (const OrderedJson& one : *stop) {
            if (!one.is_string())
                return fields.wrong("stop", "a string or an array of at most 4 strings", one);
            out.push_back(one.get<std::string>());
        }
    } else {
        return fields.wrong("stop", "a string or an array of at most 4 strings", *stop);
    }

    // Drop empty stop strings: they would end every answer at once, and clients send an empty
    // string to mean no stop string.
    std::erase(out, std::string());
    for (const std::string& one : out)
        if (one.size() > stop_bytes_max)
            return fields.refuse(
                text("Invalid value for 'stop': longer than ", stop_bytes_max, " bytes."),
                "invalid_value", "stop");
}

// Refuses fields that ask for something that the hub cannot do. Values that clients send by default
// are accepted.
void refuse_unsupported(BodyFields& fields, bool is_chat) {
    const auto non_empty = [&](const char* name, const char* why) {
        const OrderedJson* value = fields.find(name);
        if (value && !((value->is_array() || value->is_object()) && value->empty()))
            fields.unsupported(name, why);
    };

    if (is_chat) {
        const OrderedJson* const call = fields.find("function_call");
        if (!call || *call != "none") non_empty("functions", "use 'tools'.");
        if (call && *call != "none" && *call != "auto")
            fields.unsupported("function_call", "use 'tool_choice'.");

        if (const OrderedJson* modalities = fields.find("modalities");
            modalities && *modalities != OrderedJson::array({"text"}))
            fields.unsupported("modalities", "only [\"text\"] is.");

        non_empty("audio", "text only.");
        non_empty("prediction", "predicted outputs are not implemented.");
        non_empty("web_search_options", "there is no web search.");
    } else {
        if (const OrderedJson* suffix = fields.find("suffix"); suffix && *suffix != "")
            fields.unsupported("suffix", "there is no infilling.");
        if (const OrderedJson* best_of = fields.find("best_of"); best_of && *best_of != 1)
            fields.unsupported("best_of", "only 1 is.");
    }

    for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar"})
        non_empty(name, "use 'response_format', 'json_schema' or 'grammar'.");
    if (const OrderedJson* beams = fields.find("use_beam_search"); beams && *beams != false)
        fields.unsupported("use_beam_search", "there is no beam search.");
}

// Reads the form of the answer: OpenAI's response_format, or llama.cpp's json_schema or grammar.
void read_form(BodyFields& fields, CompletionParams& out) {
    AnswerForm& form = out.form;
    if (const OrderedJson* schema = fields.find("json_schema"))
        form = {.kind = AnswerForm::Kind::json_schema, .schema = *schema, .param = "json_schema"};

    std::string grammar;
    fields.string("grammar", grammar);
    if (!grammar.empty()) {
        if (form.kind != AnswerForm::Kind::free)
            return fields.refuse("'json_schema' and 'grammar' cannot both be given.",
                                 "invalid_value", "grammar");
        form = {.kind = AnswerForm::Kind::grammar, .grammar = grammar, .param = "grammar"};
    }

    const OrderedJson* format = fields.find("response_format");
    if (!format) return;
    const std::string wanted = "{\"type\": \"text\", \"json_object\" or \"json_schema\", ...}";
    const OrderedJson type = format->is_object() ? format->value("type", OrderedJson())
                                                 : OrderedJson();
    if (type == "text") return;
    if (form.kind != AnswerForm::Kind::free)
        return fields.refuse("'response_format' and '" + form.param + "' cannot both be given.",
                             "invalid_value", "response_format");

    if (type == "json_object") {
        form = {.kind = AnswerForm::Kind::json_object, .param = "response_format"};
        const auto schema = format->find("schema");
        if (schema == format->end() || schema->is_null()) return;
        form.kind = AnswerForm::Kind::json_schema;
        form.schema = *schema;
        form.param = "response_format.schema";
    } else if (type == "json_schema") {
        const auto inside = format->find("json_schema");
        if (inside == format->end() || !inside->is_object() || !inside->contains("schema"))
            return fields.wrong("response_format.json_schema",
                                "an object {\"name\": ..., \"schema\": ...}",
                                inside == format->end() ? OrderedJson() : *inside);
        form = {.kind = AnswerForm::Kind::json_schema,
                .schema = (*inside)["schema"],
                .param = "response_format.json_schema.schema"};
    } else {
        fields.wrong("response_format", wanted, *format);
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

    fields.string("model", out.model);
    fields.boolean("stream", out.stream);
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

    constexpr std::int64_t tokens_max = 1'000'000'000;
    for (const char* name : {"max_tokens", "max_completion_tokens"}) {
        if (!fields.find(name)) continue;
        // Allow 0 answer tokens if the prompt is echoed or scored: an evaluation needs the prompt's
        // scores and no answer.
        const std::int64_t tokens_min = out.echo || out.prompt_logprobs ? 0 : 1;
        fields.whole(name, tokens_min, tokens_max, out.max_tokens.emplace());
    }
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
    fields.whole("seed", std::numeric_limits<std::int64_t>::min(),
                 std::numeric_limits<std::int64_t>::max(), seed);
    sampling.seed = static_cast<std::uint64_t>(seed);

    std::string user;
    fields.string("user", user);
    read_stop(fields, out.stop);
    read_form(fields, out);
    sampling.logit_bias = read_logit_bias(fields, limits.vocab_size, limits.tokenizer);
    refuse_unsupported(fields, out.is_chat);
}

// Reads the text of a message: a string, null for an assistant, or parts of type text.
void read_content(BodyFields& fields, const OrderedJson& content, bool may_be_null,
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
            if (*type != "text")
                return fields.unsupported(
                    text(param, ".type"),
                    text("only parts of type text are, found ", json_excerpt(*type), "."));

            const auto value = part.find("text");
            if (value == part.end() || !value->is_string())
                return fields.wrong(text(param, ".text"), "a string",
                                    value == part.end() ? OrderedJson() : *value);
            out += value->get_ref<const std::string&>();
        }
    } else if (!(content.is_null() && may_be_null)) {
        fields.wrong(where, "a string or an array of text parts", content);
    }
}

// Reads a tool call that the assistant made in an earlier turn. Chat templates want its arguments
// as an object.
void read_call(BodyFields& fields, const OrderedJson& call, const std::string& where,
               OrderedJson& out) {
    const auto function = call.is_object() ? call.find("function") : call.end();
    const bool is_call = call.is_object() && function != call.end() && function->is_object() &&
                         function->contains("name") && (*function)["name"].is_string();
    if (!is_call)
        return fields.wrong(
            where, "{\"id\", \"type\": \"function\", \"function\": {\"name\", ...}}", call);
    OrderedJson arguments = function->value("arguments", OrderedJson::object());
    if (arguments.is_string()) {
        auto parsed = parse_strict_json<OrderedJson>(arguments.get_ref<const std::string&>(),
                                                     "arguments", {.depth_max = 64});
        if (parsed.ok()) arguments = *std::move(parsed);
    }
    OrderedJson one{{"type", "function"},
                    {"function", {{"name", (*function)["name"]}, {"arguments", arguments}}}};
    if (const auto id = call.find("id"); id != call.end() && id->is_string()) one["id"] = *id;
    out.push_back(std::move(one));
}

void read_calls(BodyFields& fields, const OrderedJson& message, const std::string& where,
                OrderedJson& out) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || calls->is_null()) return;
    if (!calls->is_array()) return fields.wrong(where, "an array of tool calls", *calls);
    OrderedJson list = OrderedJson::array();
    for (std::size_t i = 0; i < calls->size() && !fields.problem(); ++i)
        read_call(fields, (*calls)[i], text(where, "[", i, "]"), list);
    if (!list.empty()) out["tool_calls"] = std::move(list);
}

bool is_function_name(const std::string& name) {
    constexpr std::size_t bytes_max = 64;
    return !name.empty() && name.size() <= bytes_max &&
           name.find_first_not_of(
               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
               std::string::npos;
}

void read_tool(BodyFields& fields, const OrderedJson& tool, const std::string& where,
               std::vector<Tool>& out) {
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    if (!tool.is_object() || tool.value("type", OrderedJson()) != "function" ||
        function == tool.end() || !function->is_object())
        return fields.wrong(where, "{\"type\": \"function\", \"function\": {...}}", tool);

    const auto name = function->find("name");
    if (name == function->end() || !name->is_string() ||
        !is_function_name(name->get<std::string>()))
        return fields.wrong(text(where, ".function.name"), "1 to 64 of a-z, A-Z, 0-9, _ and -",
                            name == function->end() ? OrderedJson() : *name);
    for (const Tool& other : out)
        if (other.name == name->get<std::string>())
            return fields.wrong(text(where, ".function.name"), "names that differ", *name);

    OrderedJson parameters = function->value("parameters", OrderedJson());
    if (parameters.is_null())
        parameters = {{"type", "object"}, {"properties", OrderedJson::object()}};
    if (parameters.is_object() && !parameters.contains("type")) parameters["type"] = "object";
    if (!parameters.is_object() || parameters["type"] != "object")
        return fields.wrong(text(where, ".function.parameters"), "a schema of type object",
                            parameters);
    out.push_back({name->get<std::string>(), std::move(parameters)});
}

void read_tool_choice(BodyFields& fields, const OrderedJson& choice, ToolChoice& out) {
    const auto wanted = "\"none\", \"auto\", \"required\" or one of 'tools' by its name";
    if (choice == "none") {
        out.mode = ToolChoice::Mode::none;
    } else if (choice == "required") {
        out.mode = ToolChoice::Mode::required;
    } else if (choice.is_object() && choice.contains("function") &&
               choice["function"].is_object() && choice["function"].contains("name") &&
               choice["function"]["name"].is_string()) {
        out.name = choice["function"]["name"].get<std::string>();
        out.mode = ToolChoice::Mode::required;
        const bool is_known = std::any_of(out.tools.begin(), out.tools.end(),
                                          [&](const Tool& tool) { return tool.name == out.name; });
        if (!is_known) fields.wrong("tool_choice", wanted, choice);
    } else if (choice != "auto") {
        fields.wrong("tool_choice", wanted, choice);
    }
    if (out.mode == ToolChoice::Mode::required && out.tools.empty())
        fields.refuse("'tool_choice' asks for a call, and there are no 'tools'.", "invalid_value",
                      "tool_choice");
}

void read_tools(BodyFields& fields, CompletionParams& out) {
    constexpr std::size_t tools_max = 128;
    ToolChoice& calls = out.calls;
    fields.boolean("parallel_tool_calls", calls.parallel);
    const OrderedJson* const choice = fields.find("tool_choice");
    if (choice && *choice == "none") return;

    if (const OrderedJson* tools = fields.find("tools")) {
        if (!tools->is_array() || tools->size() > tools_max)
            return fields.wrong("tools", text("at most ", tools_max, " functions"), *tools);
        for (std::size_t i = 0; i < tools->size() && !fields.problem(); ++i)
            read_tool(fields, (*tools)[i], text("tools[", i, "]"), calls.tools);
        if (!tools->empty()) out.tools = *tools;
    }
    if (!calls.tools.empty()) calls.mode = ToolChoice::Mode::automatic;
    if (choice) read_tool_choice(fields, *choice, calls);
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
        if (name == "function") return fields.unsupported(text(where, ".role"), "use \"tool\".");
        if (name != "system" && name != "user" && name != "assistant" && name != "tool")
            return fields.wrong(text(where, ".role"),
                                "\"system\", \"user\", \"assistant\" or \"tool\"", *role);

        const auto content = message.find("content");
        std::string content_text;
        if (content == message.end() && name != "assistant")
            return fields.refuse(text("Missing required parameter: '", where, ".content'."),
                                 "missing_required_parameter", text(where, ".content"));

        if (content != message.end())
            read_content(fields, *content, name == "assistant", text(where, ".content"),
                         content_text);
        if (fields.problem()) return;
        out.messages.push_back({{"role", name}, {"content", content_text}});
        if (name == "assistant")
            read_calls(fields, message, text(where, ".tool_calls"), out.messages.back());
        for (const char* field : {"tool_call_id", "name"})
            if (const auto given = message.find(field);
                name == "tool" && given != message.end() && given->is_string())
                out.messages.back()[field] = *given;
        if (fields.problem()) return;

        const auto reasoning = message.find("reasoning_content");
        if (name != "assistant" || reasoning == message.end() || reasoning->is_null()) continue;
        if (!reasoning->is_string())
            return fields.wrong(text(where, ".reasoning_content"), "a string", *reasoning);
        out.messages.back()["reasoning_content"] = *reasoning;
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

// Reads the level of reasoning effort. encode_chat() checks whether the chat template has such a
// setting.
void read_effort(BodyFields& fields, CompletionParams& out) {
    fields.string("reasoning_effort", out.reasoning_effort);
    constexpr std::string_view levels[] = {"", "none", "minimal", "low", "medium", "high", "xhigh"};
    if (std::ranges::find(levels, out.reasoning_effort) == std::end(levels))
        fields.wrong("reasoning_effort",
                     "\"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\"",
                     OrderedJson(out.reasoning_effort));
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

}  // namespace

Checked<OrderedJson> parse_api_body(std::string_view body, std::uint32_t bytes_max) {
    if (body.size() > bytes_max)
        return Refusal{413,
                       text("The request body has ", body.size(), " bytes, at most ", bytes_max,
                            " are allowed."),
                       "request_too_large", ""};

    constexpr JsonLimits json_limits{.depth_max = 64, .values_max = 400'000, .keys_max = 4096};
    auto parsed = parse_strict_json<OrderedJson>(body, "body", json_limits);
    if (!parsed.ok())
        return Refusal{
            400, text("We could not parse the JSON body of your request: ", parsed.error().message),
            "invalid_json", ""};

    if (!parsed->is_object())
        return Refusal{400,
                       text("The body has to be a JSON object, found ", json_excerpt(*parsed), "."),
                       "invalid_json", ""};
    return *std::move(parsed);
}

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
