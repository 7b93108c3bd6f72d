#include "hub/api/dialects/anthropic.h"

#include "hub/api/body_fields.h"
#include "hub/api/request_parts.h"

namespace moex {
namespace {

// A medium is refused in a message of the user, who asks about it. In the result of a tool it
// becomes a sentence, since a refusal would end an agent's session.
enum class Media { refused, described };

std::string read_words(BodyFields& fields, const OrderedJson& content, const std::string& where,
                       Media media);

// Returns a block as text. A block that the hub does not know is kept as its JSON.
std::string read_text_block(BodyFields& fields, const OrderedJson& block, const std::string& where,
                            Media media) {
    const OrderedJson& type = member(block, "type");
    const OrderedJson& said = member(block, "text");
    if (type == "text" && said.is_string()) return said.get<std::string>();
    const OrderedJson& source = member(block, "source");
    if (type == "document" && member(source, "type") == "text" &&
        member(source, "data").is_string())
        return source["data"].get<std::string>();
    if (type == "document" && member(source, "type") == "content")
        return read_words(fields, member(source, "content"), where + ".source.content", media);

    const bool is_medium = type == "image" || type == "document" || type == "audio";
    if (type == "text") {
        fields.wrong(where + ".text", "a string", said);
    } else if (!type.is_string()) {
        fields.wrong(where + ".type", "a string", type);
    } else if (!is_medium) {
        OrderedJson kept = block;
        kept.erase("cache_control");
        return dump_json(kept);
    } else if (media == Media::described) {
        return text("[", type.get<std::string>(), ": this model reads text only]");
    } else {
        fields.unsupported(where + ".type",
                           text("only blocks of text are, found ", json_excerpt(type), "."));
    }
    return {};
}

// Returns `content` as one text: the string itself, or the blocks joined by line ends.
std::string read_words(BodyFields& fields, const OrderedJson& content, const std::string& where,
                       Media media) {
    std::string words;
    if (content.is_string()) return content.get<std::string>();
    if (content.is_null()) return words;
    if (!content.is_array()) fields.wrong(where, "a string or an array of text blocks", content);
    for (std::size_t i = 0; content.is_array() && i < content.size(); ++i)
        words += (i > 0 ? "\n" : "") +
                 read_text_block(fields, content[i], text(where, ".", i), media);
    return words;
}

void add_user_words(std::string& words, OrderedJson& out) {
    if (words.empty()) return;
    out.push_back({{"role", "user"}, {"content", std::exchange(words, {})}});
}

// Reads the blocks of a user's message. A result of a tool becomes a separate message, at its
// position between the user's texts.
void read_user(BodyFields& fields, const OrderedJson& blocks, const std::string& where,
               OrderedJson& out) {
    std::string words;
    const std::size_t before = out.size();
    for (std::size_t i = 0; i < blocks.size() && !fields.problem(); ++i) {
        const OrderedJson& block = blocks[i];
        const std::string param = text(where, ".", i);
        if (member(block, "type") != "tool_result") {
            words += read_text_block(fields, block, param, Media::refused);
            continue;
        }
        const OrderedJson& id = member(block, "tool_use_id");
        if (!id.is_string()) return fields.wrong(param + ".tool_use_id", "a string", id);
        add_user_words(words, out);
        out.push_back({{"role", "tool"},
                       {"tool_call_id", id},
                       {"content", read_words(fields, member(block, "content"), param + ".content",
                                              Media::described)}});
    }
    if (!words.empty() || out.size() == before)
        out.push_back({{"role", "user"}, {"content", words}});
}

void read_assistant(BodyFields& fields, const OrderedJson& blocks, const std::string& where,
                    OrderedJson& out) {
    std::string words, thoughts;
    OrderedJson calls = OrderedJson::array();
    for (std::size_t i = 0; i < blocks.size() && !fields.problem(); ++i) {
        const OrderedJson& block = blocks[i];
        const OrderedJson& type = member(block, "type");
        const std::string param = text(where, ".", i);
        if (type == "thinking" && member(block, "thinking").is_string()) {
            thoughts += block["thinking"].get<std::string>();
        } else if (type == "tool_use") {
            if (!member(block, "name").is_string())
                return fields.wrong(param, "{\"type\": \"tool_use\", \"id\", \"name\", \"input\"}",
                                    block);
            calls.push_back(
                {{"id", member(block, "id")},
                 {"type", "function"},
                 {"function", {{"name", block["name"]}, {"arguments", member(block, "input")}}}});
        } else if (type != "redacted_thinking") {
            words += read_text_block(fields, block, param, Media::described);
        }
    }
    OrderedJson message{{"role", "assistant"}, {"content", words}};
    if (!thoughts.empty()) message["reasoning_content"] = thoughts;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    out.push_back(std::move(message));
}

OrderedJson read_messages(BodyFields& fields) {
    OrderedJson out = OrderedJson::array();
    if (const OrderedJson* system = fields.find("system")) {
        const std::string words = read_words(fields, *system, "system", Media::refused);
        if (!words.empty()) out.push_back({{"role", "system"}, {"content", words}});
    }

    const OrderedJson* messages = fields.find("messages");
    if (!messages || !messages->is_array() || messages->empty()) {
        fields.wrong("messages", "a non-empty array of messages",
                     messages ? *messages : OrderedJson());
        return out;
    }
    for (std::size_t i = 0; i < messages->size() && !fields.problem(); ++i) {
        const OrderedJson& message = (*messages)[i];
        const OrderedJson& role = member(message, "role");
        const OrderedJson& content = member(message, "content");
        const std::string where = text("messages.", i);
        if (role != "user" && role != "assistant" && role != "system")
            fields.wrong(where + ".role", "\"user\", \"assistant\" or \"system\"", role);
        else if (content.is_string())
            out.push_back({{"role", role}, {"content", content}});
        else if (!content.is_array())
            fields.wrong(where + ".content", "a string or an array of blocks", content);
        else if (role == "system")
            out.push_back(
                {{"role", role},
                 {"content", read_words(fields, content, where + ".content", Media::refused)}});
        else if (role == "user")
            read_user(fields, content, where + ".content", out);
        else
            read_assistant(fields, content, where + ".content", out);
    }
    return out;
}

void read_tools(BodyFields& fields, OrderedJson& out) {
    const OrderedJson* tools = fields.find("tools");
    if (tools && !tools->is_array()) return fields.wrong("tools", "an array of tools", *tools);
    for (std::size_t i = 0; tools && i < tools->size(); ++i) {
        const OrderedJson& tool = (*tools)[i];
        const OrderedJson& type = member(tool, "type");
        const std::string where = text("tools.", i);
        if (type.is_string() && type != "custom") {  // a tool that Anthropic's server runs
            out["tools"].push_back(tool);
            continue;
        }
        if (!tool.is_object() || !member(tool, "name").is_string())
            return fields.wrong(where, "{\"name\", \"description\", \"input_schema\"}", tool);

        OrderedJson function{{"name", tool["name"]}};
        for (const char* name : {"description", "strict"})
            if (tool.contains(name)) function[name] = tool[name];
        if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
        out["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
    }

    const OrderedJson* choice = fields.find("tool_choice");
    if (!choice) return;
    const OrderedJson& type = member(*choice, "type");
    if (type == "auto" || type == "none")
        out["tool_choice"] = type;
    else if (type == "any")
        out["tool_choice"] = "required";
    else if (type == "tool" && member(*choice, "name").is_string())
        out["tool_choice"] = {{"type", "function"}, {"function", {{"name", (*choice)["name"]}}}};
    else
        fields.wrong("tool_choice", "{\"type\": \"auto\", \"any\", \"tool\" or \"none\"}", *choice);
    if (member(*choice, "disable_parallel_tool_use") == true) out["parallel_tool_calls"] = false;
}

// Reads the schema of structured output, from output_config (the field of Anthropic's general
// release) or output_format (the field of the beta).
void read_form(BodyFields& fields, OrderedJson& out, std::string& param) {
    const OrderedJson* config = fields.find("output_config");
    const OrderedJson* format = config ? &member(*config, "format") : nullptr;
    param = "output_config.format.schema";
    if (!format || format->is_null()) {
        format = fields.find("output_format");
        param = "output_format.schema";
    }
    if (!format) return;
    if (member(*format, "type") != "json_schema" || !format->contains("schema"))
        return fields.wrong(param, "{\"type\": \"json_schema\", \"schema\"}", *format);
    out["json_schema"] = (*format)["schema"];
}

// Reads thinking and effort.
void read_thinking(BodyFields& fields, OrderedJson& out) {
    if (const OrderedJson* config = fields.find("output_config")) {
        if (!config->is_object()) return fields.wrong("output_config", "an object", *config);
        out["reasoning_effort"] = member(*config, "effort");
    }
    const OrderedJson* thinking = fields.find("thinking");
    if (!thinking) return;
    const OrderedJson& type = member(*thinking, "type");
    if (type != "enabled" && type != "adaptive" && type != "disabled")
        return fields.wrong("thinking.type", "\"enabled\", \"adaptive\" or \"disabled\"", type);
    out["chat_template_kwargs"]["enable_thinking"] = type != "disabled";
}

void read_stops(BodyFields& fields, OrderedJson& out) {
    const OrderedJson* stops = fields.find("stop_sequences");
    if (!stops) return;
    if (!stops->is_array()) return fields.wrong("stop_sequences", "an array of strings", *stops);
    out["stop"] = *stops;
}

// Translates a body of /v1/messages into a body of OpenAI's chat completions. With
// `is_prompt_only`, max_tokens may be missing.
Checked<CompletionParams> read_body(const OrderedJson& body, const ParamLimits& limits,
                                    bool is_prompt_only) {
    BodyFields fields(body);
    OrderedJson chat{{"messages", read_messages(fields)}};
    std::string form_param;
    read_tools(fields, chat);
    read_form(fields, chat, form_param);
    read_thinking(fields, chat);
    read_stops(fields, chat);
    for (const char* name : {"model", "max_tokens", "stream", "temperature", "top_p", "top_k"})
        if (const OrderedJson* value = fields.find(name)) chat[name] = *value;

    for (const char* name : constraint_fields)
        if (const OrderedJson* value = fields.find(name)) chat[name] = *value;
    for (const auto& [name, neutral] : advice_fields)
        if (const OrderedJson* value = fields.find(name)) chat[name] = *value;

    if (!is_prompt_only && !chat.contains("max_tokens"))
        fields.refuse("max_tokens: Field required", "missing_required_parameter", "max_tokens");
    if (fields.find("prompt_logprobs"))
        fields.unsupported("prompt_logprobs",
                           "Messages have no form for it; /v1/chat/completions has.");
    for (const char* name : {"mcp_servers", "container"})
        if (const OrderedJson* value = fields.find(name); value && !value->empty())
            fields.unsupported(name, "the hub runs no tools of its own.");
    refuse_stateful(fields);
    if (fields.problem()) return *fields.problem();

    constexpr std::pair<std::string_view, std::string_view> names[] = {
        {"reasoning_effort", "output_config.effort"}, {"stop", "stop_sequences"}};
    auto params = read_chat_params(chat, limits);
    if (!params.ok()) return in_clients_words(params.refusal(), names);
    if (params->form.param == "json_schema") params->form.param = form_param;
    params->effort_param = "output_config.effort";
    if (const OrderedJson* thinking = fields.find("thinking"))
        if (!member(*thinking, "budget_tokens").is_null())
            params->notes["dropped"].push_back("thinking.budget_tokens");
    return params;
}

}  // namespace

Checked<CompletionParams> read_anthropic(const OrderedJson& body, const ParamLimits& limits) {
    return read_body(body, limits, false);
}

Checked<CompletionParams> read_anthropic_prompt(const OrderedJson& body,
                                                const ParamLimits& limits) {
    return read_body(body, limits, true);
}

}  // namespace moex
