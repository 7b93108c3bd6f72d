#include "hub/api/jobs/tool_calls.h"

#include <algorithm>
#include <random>

#include "hub/api/grammar/json_schema.h"
#include "protocol/text.h"

namespace moex {
namespace {

using Kind = GrammarNode::Kind;
using Nodes = std::vector<GrammarNode>;

constexpr std::uint32_t calls_max = 16;  // in one answer

NodeId add_node(Nodes& nodes, GrammarNode node) {
    nodes.push_back(std::move(node));
    return static_cast<NodeId>(nodes.size() - 1);
}
NodeId add_words(Nodes& nodes, std::string words) {
    GrammarNode node{.kind = Kind::words};
    node.words.add(std::move(words), 0, 0);
    return add_node(nodes, std::move(node));
}
NodeId add_sequence(Nodes& nodes, std::vector<NodeId> parts) {
    return add_node(nodes, {.kind = Kind::sequence, .children = std::move(parts)});
}

NodeId add_opening(Nodes& nodes, const CallSyntax& syntax) {
    if (syntax.opens_token)
        return add_node(nodes, {.kind = Kind::token, .token = *syntax.opens_token});
    return add_words(nodes, syntax.opens);
}

// Adds a node that accepts free text up to and including the opening of the first tool call.
NodeId add_text_before_call(Nodes& nodes, const CallSyntax& syntax) {
    if (syntax.opens_token)
        return add_sequence(nodes,
                            {add_node(nodes, {.kind = Kind::text, .texts = text_without("")}),
                             add_opening(nodes, syntax)});
    return add_node(nodes, {.kind = Kind::text, .texts = text_until(syntax.opens)});
}

}  // namespace

CallSyntax call_syntax(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
    const std::string before_arguments = "\", \"arguments\": ";
    CallSyntax syntax{.name = "hermes",
                      .opens = "<tool_call>",
                      .before_name = "\n{\"name\": \"",
                      .before_arguments = before_arguments,
                      .behind = "}\n</tool_call>",
                      .between = "\n<tool_call>"};
    if (chat_template.mentions("<|channel|>") && chat_template.mentions("<|message|>")) {
        syntax = {.name = "gpt-oss",
                  .is_known = chat_template.mentions("functions."),
                  .opens = "<|channel|>commentary to=functions.",
                  .before_arguments = " <|constrain|>json<|message|>",
                  .behind = "<|call|>",
                  .is_single = true,
                  .has_channels = true};
    } else if (chat_template.mentions("[TOOL_CALLS]")) {
        syntax = {.name = "mistral",
                  .opens = "[TOOL_CALLS]",
                  .before_name = "{\"name\": \"",
                  .before_arguments = before_arguments,
                  .behind = "}",
                  .between = ", ",
                  .closes = "]"};
    } else if (chat_template.mentions("\"parameters\": ") &&
               chat_template.mentions("{\"name\": ")) {
        syntax = {.name = "llama3",
                  .opens = "{\"name\": \"",
                  .before_arguments = "\", \"parameters\": ",
                  .behind = "}",
                  .is_single = true};
    } else {
        syntax.is_known = chat_template.mentions("<tool_call>");
    }

    const auto token = tokenizer.token_id(syntax.opens);
    if (token && tokenizer.is_added(*token)) syntax.opens_token = token;
    return syntax;
}

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

Result<NodeId> add_tool_answer(Nodes& nodes, const ToolChoice& choice, const CallSyntax& syntax,
                               std::optional<NodeId> said) {
    std::vector<NodeId> bodies;
    for (const Tool& tool : choice.tools) {
        if (!choice.name.empty() && tool.name != choice.name) continue;
        const std::string where = text("tools.", tool.name, ".parameters");
        MOEX_ASSIGN(arguments, add_schema(nodes, tool.parameters, where));
        bodies.push_back(add_sequence(
            nodes, {add_words(nodes, syntax.before_name + tool.name + syntax.before_arguments),
                    arguments, add_words(nodes, syntax.behind)}));
    }
    const NodeId body = add_node(nodes, {.kind = Kind::choice, .children = std::move(bodies)});

    const bool is_list = !syntax.closes.empty();
    const auto with_first = [&](NodeId opening) {
        std::vector<NodeId> parts{opening};
        if (is_list) {
            GrammarNode bracket{.kind = Kind::words};
            bracket.words.add("[", 0, 0);
            bracket.words.add(" [", 0, 0);
            parts.push_back(add_node(nodes, std::move(bracket)));
        }
        parts.push_back(body);
        if (choice.parallel && !syntax.is_single) {
            // A further tool call opens with the same token as the first call, if the opening is a
            // token.
            std::vector<NodeId> next;
            if (syntax.opens_token && !is_list)
                next = {add_words(nodes, "\n"), add_opening(nodes, syntax), body};
            else
                next = {add_words(nodes, syntax.between), body};
            const NodeId further = add_sequence(nodes, std::move(next));
            parts.push_back(add_node(
                nodes, {.kind = Kind::repeat, .max = calls_max - 1, .children = {further}}));
        }
        if (is_list) parts.push_back(add_words(nodes, syntax.closes));
        return add_sequence(nodes, std::move(parts));
    };
    if (choice.mode != ToolChoice::Mode::automatic) return with_first(add_opening(nodes, syntax));

    if (said)
        return add_node(nodes, {.kind = Kind::choice,
                                .children = {*said, with_first(add_opening(nodes, syntax))}});
    const std::string marker = syntax.opens_token ? std::string() : syntax.opens;
    const NodeId says = add_node(nodes, {.kind = Kind::text, .texts = text_without(marker)});
    const NodeId calls = with_first(add_text_before_call(nodes, syntax));
    return add_node(nodes, {.kind = Kind::choice, .children = {says, calls}});
}

CallSplitter::CallSplitter(CallSyntax syntax, bool calls_at_once)
    : syntax_(std::move(syntax)),
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
            const std::size_t end = held_.find('"');
            if (end == std::string::npos) return false;
            out.calls.push_back({.index = num_calls_++, .name = held_.substr(0, end)});
            held_.erase(0, end);
            part_ = Part::before_arguments;
            return true;
        }
        case Part::before_arguments:
            if (!skip_past(syntax_.before_arguments)) return false;
            part_ = Part::arguments;
            depth_ = 0;
            return true;
        case Part::arguments: break;
    }

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
