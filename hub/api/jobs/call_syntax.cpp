#include "hub/api/jobs/call_syntax.h"

#include <vector>

#include "hub/model/json_fields.h"
#include "protocol/text.h"

namespace moex {
namespace {

const std::string json_arguments = "\", \"arguments\": ";

CallSyntax hermes() {
    return {.name = "hermes",
            .opens = "<tool_call>",
            .before_name = "\n{\"name\": \"",
            .before_arguments = json_arguments,
            .behind = "}\n</tool_call>",
            .between = "\n<tool_call>"};
}

CallSyntax mistral() {
    return {.name = "mistral",
            .opens = "[TOOL_CALLS]",
            .before_name = "{\"name\": \"",
            .before_arguments = json_arguments,
            .behind = "}",
            .between = ", ",
            .closes = "]"};
}

CallSyntax llama3() {
    return {.name = "llama3",
            .opens = "{\"name\": \"",
            .before_arguments = "\", \"parameters\": ",
            .behind = "}",
            .is_single = true};
}

CallSyntax qwen3_coder() {
    return {.name = "qwen3-coder",
            .opens = "<tool_call>",
            .before_name = "\n<function=",
            .before_arguments = ">\n",
            .behind = "</function>\n</tool_call>",
            .between = "\n<tool_call>",
            .before_key = "<parameter=",
            .before_value = ">\n",
            .after_value = "\n</parameter>\n"};
}

CallSyntax glm() {
    return {.name = "glm",
            .opens = "<tool_call>",
            .before_arguments = "\n",
            .behind = "</tool_call>",
            .between = "\n<tool_call>",
            .before_key = "<arg_key>",
            .before_value = "</arg_key>\n<arg_value>",
            .after_value = "</arg_value>\n"};
}

CallSyntax mistral_args() {
    return {.name = "mistral-args",
            .opens = "[TOOL_CALLS]",
            .before_arguments = "[ARGS]",
            .between = "[TOOL_CALLS]"};
}

CallSyntax gpt_oss(const ChatTemplate& chat_template) {
    return {.name = "gpt-oss",
            .is_known = chat_template.mentions("functions."),
            .opens = "<|channel|>commentary to=functions.",
            .before_arguments = " <|constrain|>json<|message|>",
            .behind = "<|call|>",
            .is_single = true,
            .has_channels = true};
}

// Renders a call of an earlier turn; an empty text: the template refuses it.
std::string rendered_call(const ChatTemplate& chat_template, const std::string& name,
                          const std::string& key, const std::string& value) {
    const OrderedJson parameters{{"type", "object"}, {"properties", {{key, {{"type", "string"}}}}}};
    const OrderedJson tool{{"type", "function"},
                           {"function", {{"name", name}, {"parameters", parameters}}}};
    const OrderedJson call{{"id", "callprobe"},
                           {"type", "function"},
                           {"function", {{"name", name}, {"arguments", {{key, value}}}}}};
    OrderedJson context;
    context["messages"] = OrderedJson::array();
    context["messages"].push_back({{"role", "user"}, {"content", "question"}});
    context["messages"].push_back(
        {{"role", "assistant"}, {"content", ""}, {"tool_calls", OrderedJson::array({call})}});
    context["messages"].push_back(
        {{"role", "tool"}, {"tool_call_id", "callprobe"}, {"name", name}, {"content", "result"}});
    context["tools"] = OrderedJson::array({tool});
    context["add_generation_prompt"] = false;
    const auto rendered = chat_template.render(context);
    return rendered.ok() ? *rendered : std::string();
}

// Returns the syntax in which the template writes a call; nullopt: it writes none that is known.
std::optional<CallSyntax> probed_syntax(const ChatTemplate& chat_template) {
    const std::string name = "probed_function", key = "probed_key", value = "probed value";
    const std::string rendered = rendered_call(chat_template, name, key, value);
    for (const CallSyntax& one :
         {qwen3_coder(), glm(), mistral_args(), hermes(), mistral(), llama3()}) {
        const std::string call = written_call(one, name, key, value);
        for (const std::string& opening : one.closes.empty()
                                              ? std::vector{one.opens}
                                              : std::vector{one.opens + "[", one.opens + " ["})
            if (rendered.find(opening + call) != std::string::npos) return one;
    }
    return std::nullopt;
}

// Returns the syntax that the words of a template name, e.g. in its description of tools.
std::optional<CallSyntax> named_syntax(const ChatTemplate& chat_template) {
    if (chat_template.mentions("<tool_call>")) {
        if (chat_template.mentions("<function=") && chat_template.mentions("<parameter="))
            return qwen3_coder();
        return chat_template.mentions("<arg_key>") ? glm() : hermes();
    }
    if (chat_template.mentions("[TOOL_CALLS]"))
        return chat_template.mentions("[ARGS]") ? mistral_args() : mistral();
    if (chat_template.mentions("\"parameters\": ") && chat_template.mentions("{\"name\": "))
        return llama3();
    return std::nullopt;
}

}  // namespace

CallSyntax call_syntax(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
    CallSyntax syntax = hermes();
    if (chat_template.mentions("<|channel|>") && chat_template.mentions("<|message|>")) {
        syntax = gpt_oss(chat_template);
    } else if (const auto probed = probed_syntax(chat_template)) {
        syntax = *probed;
    } else if (const auto named = named_syntax(chat_template)) {
        syntax = *named;
    } else {
        syntax.is_known = false;
    }

    const auto token = tokenizer.token_id(syntax.opens);
    if (token && tokenizer.is_added(*token)) syntax.opens_token = token;
    return syntax;
}

std::string written_call(const CallSyntax& syntax, const std::string& name, const std::string& key,
                         const std::string& value) {
    const std::string arguments = syntax.has_parameters()
                                      ? text(syntax.before_key, key, syntax.before_value, value,
                                             syntax.after_value)
                                      : text("{\"", key, "\": \"", value, "\"}");
    return text(syntax.before_name, name, syntax.before_arguments, arguments, syntax.behind);
}

}  // namespace moex
