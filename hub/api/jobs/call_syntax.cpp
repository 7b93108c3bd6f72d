#include "hub/api/jobs/call_syntax.h"

#include <algorithm>
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
            .closes = "]",
            .is_list = true};
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
        for (const std::string& opening :
             one.is_list ? std::vector{one.opens + "[", one.opens + " ["} : std::vector{one.opens})
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
    } else if (const auto derived = derived_syntax(chat_template)) {
        syntax = *derived;
    } else if (const auto named = named_syntax(chat_template)) {
        syntax = *named;
    } else {
        syntax.is_known = false;
    }

    find_markers(syntax, tokenizer);
    return syntax;
}

void find_markers(CallSyntax& syntax, const Tokenizer& tokenizer) {
    const std::string* const texts[] = {
        &syntax.opens,      &syntax.before_name,  &syntax.before_arguments,
        &syntax.behind,     &syntax.between,      &syntax.closes,
        &syntax.before_key, &syntax.before_value, &syntax.after_value};
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
        if (!tokenizer.is_added(id)) continue;
        std::string words = tokenizer.token_bytes(id);
        const bool is_blank = words.find_first_not_of(" \t\r\n") == std::string::npos;
        const auto has_words = [&](const std::string* one) {
            return one->find(words) != std::string::npos;
        };
        if (!is_blank && std::any_of(std::begin(texts), std::end(texts), has_words))
            syntax.markers.push_back({std::move(words), id});
    }
}

std::vector<FixedPart> fixed_parts(const CallSyntax& syntax, std::string_view words) {
    std::vector<FixedPart> out;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < words.size();) {
        const MarkerToken* longest = nullptr;
        for (const MarkerToken& one : syntax.markers)
            if (words.substr(at).starts_with(one.text) &&
                (!longest || one.text.size() > longest->text.size()))
                longest = &one;
        if (!longest) {
            ++at;
            continue;
        }
        if (at > begin) out.push_back({words.substr(begin, at - begin)});
        out.push_back({words.substr(at, longest->text.size()), longest});
        begin = at += longest->text.size();
    }
    if (begin < words.size()) out.push_back({words.substr(begin)});
    return out;
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
