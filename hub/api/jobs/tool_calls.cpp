#include "hub/api/jobs/tool_calls.h"

#include <algorithm>
#include <random>

#include "hub/api/grammar/json_schema.h"
#include "hub/api/jobs/call_parameters.h"
#include "hub/api/jobs/call_texts.h"
#include "hub/api/jobs/grammar_nodes.h"
#include "protocol/text.h"

namespace moex {
namespace {

using Kind = GrammarNode::Kind;
using Nodes = std::vector<GrammarNode>;

constexpr std::uint32_t calls_max = 16;  // in one answer

}  // namespace

void write_out_tools(OrderedJson& messages, const OrderedJson& tools, const CallSyntax& syntax) {
    for (OrderedJson& message : messages) {
        std::string content = message["content"];
        if (message["role"] == "tool") {
            message = {{"role", "user"},
                       {"content", text("<tool_response>\n", content, "\n</tool_response>")}};
            continue;
        }
        if (!message.contains("tool_calls")) continue;
        for (const OrderedJson& call : message["tool_calls"]) {
            const OrderedJson& function = call["function"];
            content += text(content.empty() ? "" : "\n", syntax.opens, syntax.before_name,
                            function["name"].get_ref<const std::string&>(), syntax.before_arguments,
                            function["arguments"].dump(), syntax.behind);
        }
        message.erase("tool_calls");
        message["content"] = content;
    }
    if (!tools.is_array() || tools.empty()) return;

    std::string words = "These functions can be called:\n";
    for (const OrderedJson& tool : tools) words += tool["function"].dump() + "\n";
    words += text("A call is written as:\n", syntax.opens, syntax.before_name, "NAME",
                  syntax.before_arguments, "ARGUMENTS", syntax.behind);
    if (messages[0]["role"] == "system")
        messages[0]["content"] = messages[0]["content"].get<std::string>() + "\n\n" + words;
    else
        messages.insert(messages.begin(), OrderedJson{{"role", "system"}, {"content", words}});
}

Result<NodeId> add_arguments(Nodes& nodes, const Tool& tool, const CallSyntax& syntax,
                             WeakenedTools& weakened) {
    const std::string where = text("tools.", tool.name, ".parameters");
    if (tool.is_strict && !syntax.has_parameters())
        return add_schema(nodes, tool.parameters, where,
                          {.closes_objects = weakened.closes_objects});
    std::vector<Weakening> found;
    static const OrderedJson any_object{{"type", "object"}};
    const bool takes_any = weakened.takes_any && !syntax.has_parameters();
    if (takes_any) found.push_back({"", "schema"});
    const bool closes = weakened.closes_objects;
    auto arguments = syntax.has_parameters() ? add_parameters(nodes, tool, syntax, closes, found)
                     : takes_any
                         ? add_schema(nodes, any_object, where)
                         : add_weakened_schema(nodes, tool.parameters, where, closes, found);
    for (const Weakening& one : found)
        weakened.list.push_back(
            {{"tool", tool.name}, {"path", one.path}, {"keyword", one.keyword}});
    if (!found.empty())
        weakened.judges[tool.name] = std::make_shared<const SchemaJudge>(tool.parameters);
    return arguments;
}

Result<NodeId> add_tool_answer(Nodes& nodes, const ToolChoice& choice, const CallSyntax& syntax,
                               std::optional<NodeId> said, WeakenedTools& weakened) {
    std::vector<NodeId> bodies;
    for (const Tool& tool : choice.tools) {
        if (!choice.name.empty() && tool.name != choice.name) continue;
        MOEX_ASSIGN(arguments, add_arguments(nodes, tool, syntax, weakened));
        bodies.push_back(add_sequence(
            nodes, {add_fixed(nodes, syntax, syntax.before_name), add_words(nodes, tool.name),
                    add_fixed(nodes, syntax, syntax.before_arguments), arguments,
                    add_fixed(nodes, syntax, syntax.behind)}));
    }
    const NodeId body = add_node(nodes, {.kind = Kind::choice, .children = std::move(bodies)});

    const auto with_first = [&](NodeId opening) {
        std::vector<NodeId> parts{opening};
        if (syntax.is_list) {
            GrammarNode bracket{.kind = Kind::words};
            bracket.words.add("[", 0, 0);
            bracket.words.add(" [", 0, 0);
            parts.push_back(add_node(nodes, std::move(bracket)));
        }
        parts.push_back(body);
        if (choice.parallel && !syntax.is_single) {
            const NodeId next = add_fixed(nodes, syntax, syntax.between);
            const NodeId further = add_sequence(nodes, {next, body});
            parts.push_back(add_node(
                nodes, {.kind = Kind::repeat, .max = calls_max - 1, .children = {further}}));
        }
        if (!syntax.closes.empty()) parts.push_back(add_fixed(nodes, syntax, syntax.closes));
        return add_sequence(nodes, std::move(parts));
    };
    if (choice.mode != ToolChoice::Mode::automatic)
        return with_first(add_fixed(nodes, syntax, syntax.opens));

    if (said) {
        const NodeId calls = with_first(add_fixed(nodes, syntax, syntax.opens));
        return add_node(nodes, {.kind = Kind::choice, .children = {*said, calls}});
    }
    const NodeId says = add_node(nodes, {.kind = Kind::text, .texts = text_without(syntax.opens)});
    const NodeId calls = with_first(add_text_until(nodes, syntax, syntax.opens));
    return add_node(nodes, {.kind = Kind::choice, .children = {says, calls}});
}

CallSplitter::CallSplitter(CallSyntax syntax, bool calls_at_once, std::vector<Tool> tools)
    : syntax_(std::move(syntax)),
      tools_(std::move(tools)),
      part_(calls_at_once ? Part::before_name : Part::content) {}

// Drops the held text up to and including `words`; returns false if `words` has not arrived yet.
bool CallSplitter::skip_past(std::string_view words) {
    const std::size_t found = held_.find(words);
    if (found == std::string::npos) return false;
    held_.erase(0, found + words.size());
    return true;
}

bool CallSplitter::step(CalledText& out) {
    switch (part_) {
        case Part::content: {
            const std::size_t found = held_.find(syntax_.opens);
            if (found != std::string::npos) {
                out.content += held_.substr(0, found);
                held_.erase(0, found + syntax_.opens.size());
                part_ = syntax_.before_name.empty() ? Part::name : Part::before_name;
                return true;
            }
            std::size_t kept = std::min(held_.size(), syntax_.opens.size() - 1);
            while (kept > 0 && !held_.ends_with(syntax_.opens.substr(0, kept))) --kept;
            out.content += held_.substr(0, held_.size() - kept);
            held_.erase(0, held_.size() - kept);
            return false;
        }
        case Part::before_name:
            if (!skip_past(syntax_.before_name.empty() ? syntax_.opens : syntax_.before_name))
                return false;
            part_ = Part::name;
            return true;
        case Part::name: {
            // Without a text of its own, the arguments begin with a parameter, or they are empty.
            const std::size_t end = syntax_.before_arguments.empty()
                                        ? std::min(held_.find(syntax_.before_key),
                                                   held_.find(syntax_.behind))
                                        : held_.find(syntax_.before_arguments);
            if (end == std::string::npos) return false;
            name_ = held_.substr(0, end);
            out.calls.push_back({.index = num_calls_++, .name = name_});
            held_.erase(0, end + syntax_.before_arguments.size());
            part_ = Part::arguments;
            depth_ = num_parameters_ = 0;
            return true;
        }
        case Part::arguments: break;
    }
    return syntax_.has_parameters() ? step_parameters(out) : step_json(out);
}

// Takes the next part of arguments that are a JSON object.
bool CallSplitter::step_json(CalledText& out) {
    std::size_t taken = 0;
    bool is_done = false;
    while (taken < held_.size() && !is_done) {
        const char c = held_[taken++];
        if (in_string_) {
            if (!is_escaped_ && c == '"') in_string_ = false;
            is_escaped_ = !is_escaped_ && c == '\\';
            continue;
        }
        in_string_ = c == '"';
        if (c == '{' || c == '[') ++depth_;
        if (c == '}' || c == ']') is_done = --depth_ == 0;
    }
    if (taken > 0)
        out.calls.push_back({.index = num_calls_ - 1, .arguments = held_.substr(0, taken)});
    held_.erase(0, taken);
    if (is_done) part_ = Part::before_name;
    return is_done;
}

// Takes the next whole parameter, or the end of the arguments.
bool CallSplitter::step_parameters(CalledText& out) {
    const auto say = [&](std::string words) {
        out.calls.push_back({.index = num_calls_ - 1, .arguments = std::move(words)});
    };
    if (held_.starts_with(syntax_.behind)) {
        held_.erase(0, syntax_.behind.size());
        say(num_parameters_ == 0 ? "{}" : "}");
        part_ = Part::before_name;
        return true;
    }
    if (!held_.starts_with(syntax_.before_key)) return false;
    const std::size_t key = syntax_.before_key.size();
    const std::size_t key_end = held_.find(syntax_.before_value, key);
    if (key_end == std::string::npos) return false;
    const std::size_t value = key_end + syntax_.before_value.size();
    const std::size_t value_end = held_.find(syntax_.after_value, value);
    if (value_end == std::string::npos) return false;

    const auto tool = std::find_if(tools_.begin(), tools_.end(),
                                   [&](const Tool& one) { return one.name == name_; });
    const std::string name = held_.substr(key, key_end - key);
    say(text(num_parameters_++ == 0 ? "{" : json_comma, json_string(name), json_colon,
             parameter_json(tool == tools_.end() ? nullptr : &*tool, name,
                            held_.substr(value, value_end - value))));
    held_.erase(0, value_end + syntax_.after_value.size());
    return true;
}

CalledText CallSplitter::push(std::string_view piece) {
    held_ += piece;
    CalledText out;
    while (step(out)) {}
    return out;
}

CalledText CallSplitter::finish() {
    CalledText out;
    if (part_ == Part::content) out.content = std::move(held_);
    held_.clear();
    return out;
}

std::string new_call_id() {
    static constexpr std::string_view letters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    std::random_device device;
    std::string id(9, ' ');
    for (char& c : id) c = letters[device() % letters.size()];
    return id;
}

}  // namespace moex
