#include "hub/api/body_fields.h"
#include "hub/api/dialects/responses.h"
#include "hub/api/request_parts.h"

namespace moex {
namespace {

bool has_text(const OrderedJson& type) {
    return type == "input_text" || type == "output_text" || type == "text" ||
           type == "summary_text" || type == "reasoning_text" || type == "refusal";
}

// Reads a text: a string, or parts of type input_text, output_text or text. In the output of a tool
// (`describes`), anything else becomes words, since a refusal would end an agent's session.
std::string read_words(BodyFields& fields, const OrderedJson& content, const std::string& where,
                       bool describes = false) {
    std::string words;
    if (content.is_string()) return content.get<std::string>();
    if (describes && content.is_null()) return words;
    if (describes && !content.is_array()) return dump_json(content);
    if (!content.is_array()) {
        fields.wrong(where, "a string or an array of text parts", content);
        return words;
    }
    for (std::size_t i = 0; i < content.size(); ++i) {
        const OrderedJson& type = member(content[i], "type");
        const OrderedJson& said = member(content[i], type == "refusal" ? "refusal" : "text");
        const std::string param = text(where, "[", i, "]");
        if (describes && !(has_text(type) && said.is_string()))
            words += type.is_string() && !has_text(type)
                         ? text("[", type.get<std::string>(), ": this model reads text only]")
                         : dump_json(content[i]);
        else if (!has_text(type))
            fields.unsupported(param + ".type",
                               text("only parts of text are, found ", json_excerpt(type), "."));
        else if (!said.is_string())
            fields.wrong(param + ".text", "a string", said);
        else
            words += said.get<std::string>();
    }
    return words;
}

// Turns the items of a request's input into chat messages. Thoughts and tool calls become parts of
// the adjacent message of the assistant.
class ItemReader {
  public:
    ItemReader(BodyFields& fields, OrderedJson& messages) : fields_(fields), messages_(messages) {}

    void read(const OrderedJson& item, const std::string& where) {
        const OrderedJson& given = member(item, "type");
        const OrderedJson type = given.is_null() ? OrderedJson("message") : given;
        if (type == "message") return read_message(item, where);
        if (type == "function_call") return read_call(item, where);
        if (type == "function_call_output") return read_result(item, where);
        if (type == "reasoning") return read_reasoning(item);
        if (!type.is_string()) return fields_.wrong(where + ".type", "a string", type);
        if (type == "item_reference")
            return fields_.unsupported(where + ".type",
                                       "nothing is stored here: send the item itself.");
        read_foreign(item, type.get<std::string>());
    }

    void finish() {
        if (!thoughts_.empty()) assistant();
    }

  private:
    void read_message(const OrderedJson& item, const std::string& where) {
        const OrderedJson& role = member(item, "role");
        if (role != "user" && role != "assistant" && role != "system" && role != "developer")
            return fields_.wrong(where + ".role",
                                 "\"user\", \"assistant\", \"system\" or \"developer\"", role);
        std::string words = read_words(fields_, member(item, "content"), where + ".content");
        if (role == "assistant") {
            is_open_ = false;
            assistant()["content"] = std::move(words);
            return;
        }
        end_turn();
        messages_.push_back({{"role", role}, {"content", std::move(words)}});
    }

    void read_call(const OrderedJson& item, const std::string& where) {
        const OrderedJson& arguments = member(item, "arguments");
        if (!member(item, "name").is_string())
            return fields_.wrong(where, "{\"call_id\", \"name\", \"arguments\": a string}", item);
        OrderedJson call{{"type", "function"},
                         {"function", {{"name", item["name"]}, {"arguments", arguments}}}};
        // The item's own id names the call where a client lost the call's.
        for (const char* name : {"call_id", "id"})
            if (const OrderedJson& id = member(item, name); id.is_string() && !call.contains("id"))
                call["id"] = id;
        assistant()["tool_calls"].push_back(std::move(call));
    }

    void read_result(const OrderedJson& item, const std::string& where) {
        const OrderedJson& id = member(item, "call_id");
        if (!id.is_string()) return fields_.wrong(where + ".call_id", "a string", id);
        end_turn();
        messages_.push_back(
            {{"role", "tool"},
             {"tool_call_id", id},
             {"content", read_words(fields_, member(item, "output"), where + ".output", true)}});
    }

    // Reads an item of a tool that the hub does not know, e.g. a custom tool call. The model sees
    // it as text: calls as words of its own, their outputs as words of the user.
    void read_foreign(const OrderedJson& item, const std::string& type) {
        OrderedJson kept = item;
        for (const char* name : {"type", "id", "call_id", "status"}) kept.erase(name);
        const std::string words = text(type, ": ", dump_json(kept));
        if (type.ends_with("_output") || type.ends_with("_response")) {
            end_turn();
            messages_.push_back({{"role", "user"}, {"content", words}});
            return;
        }
        OrderedJson& content = assistant()["content"];
        content = content == "" ? words : content.get<std::string>() + "\n" + words;
    }

    void read_reasoning(const OrderedJson& item) {
        end_turn();
        for (const OrderedJson& part : member(item, "content"))
            if (member(part, "text").is_string()) thoughts_ += part["text"].get<std::string>();
    }

    // Returns the assistant's message to which parts are being added, or begins a new one.
    OrderedJson& assistant() {
        if (!is_open_) messages_.push_back({{"role", "assistant"}, {"content", ""}});
        is_open_ = true;
        if (!thoughts_.empty())
            messages_.back()["reasoning_content"] = std::exchange(thoughts_, {});
        return messages_.back();
    }

    void end_turn() {
        finish();
        is_open_ = false;
    }

    BodyFields& fields_;
    OrderedJson& messages_;
    std::string thoughts_;
    bool is_open_ = false;
};

OrderedJson read_messages(BodyFields& fields) {
    OrderedJson out = OrderedJson::array();
    std::string instructions;
    fields.string("instructions", instructions);
    if (!instructions.empty())
        out.push_back({{"role", "system"}, {"content", std::move(instructions)}});

    const OrderedJson* input = fields.find("input");
    if (!input) {
        fields.refuse("Missing required parameter: 'input'.", "missing_required_parameter",
                      "input");
    } else if (input->is_string()) {
        out.push_back({{"role", "user"}, {"content", *input}});
    } else if (!input->is_array() || input->empty()) {
        fields.wrong("input", "a string or a non-empty array of items", *input);
    } else {
        ItemReader reader(fields, out);
        for (std::size_t i = 0; i < input->size() && !fields.problem(); ++i)
            reader.read((*input)[i], text("input[", i, "]"));
        reader.finish();
    }
    return out;
}

void read_tools(BodyFields& fields, OrderedJson& out) {
    const OrderedJson* tools = fields.find("tools");
    if (tools && !tools->is_array()) return fields.wrong("tools", "an array of tools", *tools);
    for (std::size_t i = 0; tools && i < tools->size(); ++i) {
        const OrderedJson& tool = (*tools)[i];
        const OrderedJson& type = member(tool, "type");
        if (type != "function") {
            out["tools"].push_back(tool);
            continue;
        }
        OrderedJson function = OrderedJson::object();
        for (const char* name : {"name", "description", "parameters", "strict"})
            if (tool.contains(name)) function[name] = tool[name];
        out["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
    }

    if (const OrderedJson* choice = fields.find("tool_choice")) out["tool_choice"] = *choice;
}

void read_form(BodyFields& fields, OrderedJson& out) {
    const OrderedJson* config = fields.find("text");
    if (!config) return;
    const OrderedJson& format = member(*config, "format");
    const OrderedJson& type = member(format, "type");
    if (format.is_null() || type == "text") return;
    if (type == "json_object")
        out["response_format"] = {{"type", "json_object"}};
    else if (type == "json_schema" && format.contains("schema"))
        out["json_schema"] = format["schema"];
    else
        fields.wrong("text.format", "{\"type\": \"text\", \"json_object\" or \"json_schema\", ...}",
                     format);
}

void read_logprobs(BodyFields& fields, OrderedJson& out) {
    if (const OrderedJson* include = fields.find("include"); include && include->is_array())
        for (const OrderedJson& one : *include)
            if (one == "message.output_text.logprobs") out["logprobs"] = true;
    if (const OrderedJson* top = fields.find("top_logprobs"); top && *top != 0) {
        out["logprobs"] = true;
        out["top_logprobs"] = *top;
    }
}

// Refuses fields that need stored responses or services other than the model.
void refuse_unsupported(BodyFields& fields) {
    refuse_stateful(fields);
    if (fields.find("prompt"))
        fields.unsupported("prompt", "nothing is stored here: send the items as 'input'.");
    if (fields.find("prompt_logprobs"))
        fields.unsupported("prompt_logprobs",
                           "Responses have no form for it; /v1/chat/completions has.");
    if (const OrderedJson* background = fields.find("background");
        background && *background != false)
        fields.unsupported("background", "nothing is stored here.");
    if (const OrderedJson* truncation = fields.find("truncation");
        truncation && *truncation != "disabled" && *truncation != "auto")
        fields.wrong("truncation", "\"auto\" or \"disabled\"", *truncation);
}

}  // namespace

Checked<CompletionParams> read_responses(const OrderedJson& body, const ParamLimits& limits) {
    BodyFields fields(body);
    refuse_unsupported(fields);
    OrderedJson chat{{"messages", read_messages(fields)}};
    read_tools(fields, chat);
    read_form(fields, chat);
    read_logprobs(fields, chat);
    for (const char* name :
         {"model", "stream", "temperature", "top_p", "parallel_tool_calls", "user", "seed", "top_k",
          "min_p", "stop", "chat_template_kwargs", "return_progress", "timings_per_token"})
        if (const OrderedJson* value = fields.find(name)) chat[name] = *value;
    for (const char* name : constraint_fields)
        if (const OrderedJson* value = fields.find(name)) chat[name] = *value;
    for (const auto& [name, neutral] : advice_fields)
        if (const OrderedJson* value = fields.find(name)) chat[name] = *value;
    if (const OrderedJson* tokens = fields.find("max_output_tokens")) chat["max_tokens"] = *tokens;
    if (const OrderedJson* reasoning = fields.find("reasoning")) {
        if (!reasoning->is_object()) fields.wrong("reasoning", "an object", *reasoning);
        chat["reasoning_effort"] = member(*reasoning, "effort");
    }
    // The answer is always a new item, even if the last message of the input is the assistant's.
    chat["add_generation_prompt"] = true;
    if (fields.problem()) return *fields.problem();

    constexpr std::pair<std::string_view, std::string_view> names[] = {
        {"reasoning_effort", "reasoning.effort"}, {"max_tokens", "max_output_tokens"}};
    auto params = read_chat_params(chat, limits);
    if (!params.ok()) return in_clients_words(params.refusal(), names);
    params->source = "input";
    params->max_tokens_param = "max_output_tokens";
    params->effort_param = "reasoning.effort";
    const bool is_own_form = params->form.param == "json_schema" ||
                             params->form.param == "response_format";
    if (is_own_form) params->form.param = "text.format";
    return params;
}

}  // namespace moex
