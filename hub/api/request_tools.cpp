// Reads tools, the choice among them, and the tool calls of earlier turns.
#include <algorithm>

#include "hub/api/json_body.h"
#include "hub/api/request_parts.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

bool is_blank(std::string_view words) {
    return words.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

void read_call(BodyFields& fields, const OrderedJson& call, const std::string& where,
               OrderedJson& out) {
    const bool is_custom = member(call, "type") == "custom";
    const OrderedJson& function = member(call, is_custom ? "custom" : "function");
    if (!member(function, "name").is_string())
        return fields.wrong(
            where, "{\"id\", \"type\": \"function\", \"function\": {\"name\", ...}}", call);
    // A custom tool takes one text, which chat templates have no other place for.
    OrderedJson arguments = is_custom ? OrderedJson{{"input", member(function, "input")}}
                                      : healed_arguments(member(function, "arguments"));
    OrderedJson one{
        {"type", "function"},
        {"function", {{"name", function["name"]}, {"arguments", std::move(arguments)}}}};
    if (const OrderedJson& id = member(call, "id"); id.is_string()) one["id"] = id;
    out.push_back(std::move(one));
}

constexpr std::size_t name_bytes_max = 128;

bool is_function_name(const OrderedJson& name) {
    if (!name.is_string()) return false;
    const auto& words = name.get_ref<const std::string&>();
    return !words.empty() && words.size() <= name_bytes_max &&
           words.find_first_not_of(
               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
               "_-./:") == std::string::npos;
}

bool is_object_type(const OrderedJson& type) {
    return type == "object" ||
           (type.is_array() && std::find(type.begin(), type.end(), "object") != type.end());
}

// Reads the schema of a tool's arguments. Arguments are an object; a tool that is not strict may
// say so in any way.
OrderedJson read_parameters(BodyFields& fields, const OrderedJson& given, const std::string& where,
                            Tool& tool, CompletionParams& out) {
    if (given.is_null()) return {{"type", "object"}, {"properties", OrderedJson::object()}};
    OrderedJson parameters = given;
    if (parameters == true) parameters = OrderedJson::object();
    const bool has_type = parameters.is_object() && !member(parameters, "type").is_null();
    if (parameters.is_object() &&
        (!has_type || (!tool.is_strict && is_object_type(parameters["type"]))))
        parameters["type"] = "object";
    if (parameters.is_object() && parameters["type"] == "object") return parameters;
    if (tool.is_strict || !parameters.is_object()) {
        fields.wrong(where + ".parameters", "a schema of type object", given);
        return {};
    }
    out.notes["weakened"].push_back({{"tool", tool.name}, {"path", ""}, {"keyword", "type"}});
    return {{"type", "object"}};
}

void read_function(BodyFields& fields, const OrderedJson& function, const std::string& where,
                   CompletionParams& out) {
    const OrderedJson& name = member(function, "name");
    if (!is_function_name(name))
        return fields.wrong(where + ".name",
                            text("1 to ", name_bytes_max, " of a-z, A-Z, 0-9, _ - . / and :"),
                            name);
    Tool tool{.name = name.get<std::string>(), .is_strict = member(function, "strict") == true};
    tool.parameters = read_parameters(fields, member(function, "parameters"), where, tool, out);
    if (!fields.problem()) out.calls.tools.push_back(std::move(tool));
}

// Returns a function with its fields in "function", as Chat Completions have it. Clients of
// Responses write the fields beside the type, and some clients leave the type out.
OrderedJson whole_function(const OrderedJson& tool) {
    const OrderedJson& type = member(tool, "type");
    if (!type.is_null() && type != "function") return tool;
    if (member(tool, "function").is_object()) {
        OrderedJson whole = tool;
        whole["type"] = "function";
        return whole;
    }
    if (!member(tool, "name").is_string()) return tool;
    OrderedJson function = tool;
    function.erase("type");
    return {{"type", "function"}, {"function", std::move(function)}};
}

void read_tool(BodyFields& fields, const OrderedJson& given, const std::string& where,
               CompletionParams& out) {
    const OrderedJson tool = whole_function(given);
    const OrderedJson& type = member(tool, "type");
    const OrderedJson& function = member(tool, "function");
    const bool is_function = type == "function" && function.is_object();
    // A call names its tool, so a second tool of the same name could never be called.
    const bool is_again = is_function &&
                          std::ranges::any_of(out.calls.tools, [&](const Tool& other) {
                              return member(function, "name") == other.name;
                          });
    if (is_function && !is_again) {
        read_function(fields, function, where + ".function", out);
        if (!out.tools.is_array()) out.tools = OrderedJson::array();
        out.tools.push_back(tool);
        return;
    }
    if (!type.is_string() || (type == "function" && !is_again))
        return fields.wrong(where, "{\"type\": \"function\", \"function\": {...}}", given);
    OrderedJson note{{"type", type}};
    for (const OrderedJson* const holder : {&tool, &member(tool, type.get<std::string>())})
        if (const OrderedJson& name = member(*holder, "name"); name.is_string())
            note["name"] = name;
    out.notes["left_out"].push_back(std::move(note));
}

// Returns the name in {"function": {"name"}}, or in {"name"} as Responses and Anthropic have it.
const OrderedJson& chosen_name(const OrderedJson& choice) {
    const OrderedJson& inner = member(member(choice, "function"), "name");
    return inner.is_string() ? inner : member(choice, "name");
}

// Returns the word of a choice that names no tool: "auto" of "auto" and of {"type": "auto"}.
const OrderedJson& choice_word(const OrderedJson& choice) {
    return choice.is_string() || chosen_name(choice).is_string() ? choice : member(choice, "type");
}

// Keeps the tools that `choice` allows: {"type": "allowed_tools", "mode", "tools"}, with the last
// two also in an object "allowed_tools". The prompt keeps all tools.
void keep_allowed(const OrderedJson& choice, ToolChoice& out) {
    const OrderedJson& inner = member(choice, "allowed_tools");
    const OrderedJson& allowed = inner.is_object() ? inner : choice;
    const OrderedJson& names = member(allowed, "tools");
    std::erase_if(out.tools, [&](const Tool& tool) {
        return std::none_of(names.begin(), names.end(),
                            [&](const OrderedJson& one) { return chosen_name(one) == tool.name; });
    });
    if (member(allowed, "mode") == "required")
        out.mode = ToolChoice::Mode::required;
    else if (out.tools.empty())
        out.mode = ToolChoice::Mode::none;
}

// Reads the choice in the spelling of any dialect: a word, {"type": word}, or the name of a tool.
void read_tool_choice(BodyFields& fields, const OrderedJson& choice, ToolChoice& out) {
    const auto wanted = "\"none\", \"auto\", \"required\" or one of 'tools' by its name";
    const OrderedJson& name = chosen_name(choice);
    const OrderedJson& word = choice_word(choice);
    if (word == "allowed_tools") {
        keep_allowed(choice, out);
    } else if (word == "required" || word == "any") {
        out.mode = ToolChoice::Mode::required;
    } else if (name.is_string()) {
        out.name = name.get<std::string>();
        out.mode = ToolChoice::Mode::required;
        const bool is_known = std::any_of(out.tools.begin(), out.tools.end(),
                                          [&](const Tool& tool) { return tool.name == out.name; });
        if (!is_known) fields.wrong("tool_choice", wanted, choice);
    } else if (word != "auto") {
        fields.wrong("tool_choice", wanted, choice);
    }
    if (out.mode == ToolChoice::Mode::required && out.tools.empty())
        fields.refuse("'tool_choice' asks for a call, and there are no 'tools'.", "invalid_value",
                      "tool_choice");
}

}  // namespace

OrderedJson healed_arguments(const OrderedJson& given) {
    if (given.is_null()) return OrderedJson::object();
    if (given.is_object()) return given;
    std::string words = given.is_string() ? given.get<std::string>() : dump_json(given);
    if (is_blank(words)) return OrderedJson::object();
    auto parsed = parse_strict_json<OrderedJson>(with_whole_surrogates(words), "arguments",
                                                 {.depth_max = 64});
    if (parsed.ok() && parsed->is_object()) return *std::move(parsed);
    return {{"text", std::move(words)}};
}

void read_calls(BodyFields& fields, const OrderedJson& message, const std::string& where,
                OrderedJson& out) {
    const OrderedJson& calls = member(message, "tool_calls");
    if (calls.is_null()) return;
    if (!calls.is_array()) return fields.wrong(where, "an array of tool calls", calls);
    OrderedJson list = OrderedJson::array();
    for (std::size_t i = 0; i < calls.size() && !fields.problem(); ++i)
        read_call(fields, calls[i], text(where, "[", i, "]"), list);
    if (!list.empty()) out["tool_calls"] = std::move(list);
}

void read_tools(BodyFields& fields, CompletionParams& out) {
    constexpr std::size_t tools_max = 512;
    ToolChoice& calls = out.calls;
    fields.boolean("parallel_tool_calls", calls.parallel);
    const OrderedJson* const choice = fields.find("tool_choice");
    if (choice && choice_word(*choice) == "none") return;

    if (const OrderedJson* tools = fields.find("tools")) {
        if (!tools->is_array() || tools->size() > tools_max)
            return fields.wrong("tools", text("at most ", tools_max, " tools"), *tools);
        for (std::size_t i = 0; i < tools->size() && !fields.problem(); ++i)
            read_tool(fields, (*tools)[i], text("tools[", i, "]"), out);
    }
    if (!calls.tools.empty()) calls.mode = ToolChoice::Mode::automatic;
    if (choice) read_tool_choice(fields, *choice, calls);
}

}  // namespace moex
