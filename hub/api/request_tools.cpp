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
    const OrderedJson& function = member(call, "function");
    if (!member(function, "name").is_string())
        return fields.wrong(
            where, "{\"id\", \"type\": \"function\", \"function\": {\"name\", ...}}", call);
    OrderedJson one{{"type", "function"},
                    {"function",
                     {{"name", function["name"]},
                      {"arguments", healed_arguments(member(function, "arguments"))}}}};
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
    for (const Tool& other : out.calls.tools)
        if (other.name == tool.name)
            return fields.wrong(where + ".name", "names that differ", name);
    tool.parameters = read_parameters(fields, member(function, "parameters"), where, tool, out);
    if (!fields.problem()) out.calls.tools.push_back(std::move(tool));
}

void read_tool(BodyFields& fields, const OrderedJson& tool, const std::string& where,
               CompletionParams& out) {
    const OrderedJson& type = member(tool, "type");
    const OrderedJson& function = member(tool, "function");
    if (type == "function" && function.is_object()) {
        read_function(fields, function, where + ".function", out);
        if (!out.tools.is_array()) out.tools = OrderedJson::array();
        out.tools.push_back(tool);
        return;
    }
    if (!type.is_string() || type == "function")
        return fields.wrong(where, "{\"type\": \"function\", \"function\": {...}}", tool);
    OrderedJson note{{"type", type}};
    for (const OrderedJson* const holder : {&tool, &member(tool, type.get<std::string>())})
        if (const OrderedJson& name = member(*holder, "name"); name.is_string())
            note["name"] = name;
    out.notes["left_out"].push_back(std::move(note));
}

void read_tool_choice(BodyFields& fields, const OrderedJson& choice, ToolChoice& out) {
    const auto wanted = "\"none\", \"auto\", \"required\" or one of 'tools' by its name";
    const OrderedJson& name = member(member(choice, "function"), "name");
    if (choice == "none") {
        out.mode = ToolChoice::Mode::none;
    } else if (choice == "required") {
        out.mode = ToolChoice::Mode::required;
    } else if (name.is_string()) {
        out.name = name.get<std::string>();
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
    if (choice && *choice == "none") return;

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
