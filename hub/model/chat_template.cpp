#include "hub/model/chat_template.h"

#include <algorithm>

#include "hub/model/jinja/parser.h"
#include "hub/model/jinja/renderer.h"
#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

// Builds the variables that a template sees for a chat. transformers always passes all of these
// variables, and templates test them with "is not none".
Result<ordered_json> chat_context(const ordered_json& messages, const ordered_json& extra) {
    if (!extra.is_null() && !extra.is_object())
        return Error{ErrorCode::invalid_argument, "extra template variables are a JSON object"};

    ordered_json context = {
        {"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", false}};
    if (extra.is_object())
        for (const auto& [name, value] : extra.items()) context[name] = value;
    context["messages"] = messages;
    return context;
}

bool is_role(const ordered_json& value) {
    return value == "system" || value == "user" || value == "assistant" || value == "tool";
}

// Returns the value of the variable `messages`. A role of the four counts as text of the template
// itself, since some templates join a control token from it: '<|' + message.role + '|>'.
jinja::Value messages_value(const ordered_json& messages) {
    if (!messages.is_array()) return jinja::from_json(messages);
    std::vector<jinja::Value> items;
    for (const ordered_json& message : messages) {
        jinja::Value item = jinja::from_json(message, 1);
        const jinja::Dict* const fields = item.dict();
        if (fields && message.contains("role") && is_role(message["role"])) {
            jinja::Dict known = *fields;
            known.set(jinja::make_text("role"),
                      jinja::make_text(message["role"].get<std::string>()));
            item = jinja::make_dict(std::move(known));
        }
        items.push_back(std::move(item));
    }
    return jinja::make_list(std::move(items));
}

std::string_view without_blanks(std::string_view text, bool at_end) {
    constexpr std::string_view blanks = " \t\n\r\f\v";
    const std::size_t begin = std::min(text.find_first_not_of(blanks), text.size());
    const std::size_t end = text.find_last_not_of(blanks) + 1;
    return at_end ? text.substr(begin, std::max(begin, end) - begin) : text.substr(begin);
}

bool holds(const std::vector<TextRange>& ranges, std::size_t begin, std::size_t end) {
    return std::any_of(ranges.begin(), ranges.end(), [&](const TextRange& range) {
        return range.begin <= begin && end <= range.end;
    });
}

// Returns the end of the last occurrence of `words` in those parts of the rendered text that came
// from messages. Templates may strip white space from `words`.
std::optional<std::size_t> end_of_words(const jinja::MarkedText& rendered, std::string_view words) {
    const std::string_view bytes(rendered.bytes());
    const std::string_view trimmed = without_blanks(words, true);
    const std::string_view with_end = without_blanks(words, false);
    if (trimmed.empty()) return std::nullopt;

    std::size_t at = bytes.rfind(trimmed);
    while (at != std::string_view::npos && !holds(rendered.outside(), at, at + trimmed.size()))
        at = at == 0 ? std::string_view::npos : bytes.rfind(trimmed, at - 1);
    if (at == std::string_view::npos) return std::nullopt;

    const bool keeps_end = bytes.substr(at).starts_with(with_end) &&
                           holds(rendered.outside(), at, at + with_end.size());
    return at + (keeps_end ? with_end.size() : trimmed.size());
}

}  // namespace

struct ChatTemplate::State {
    jinja::Body body;
    std::string source;
    // control tokens of the checkpoint, e.g. bos_token; they count as text of the template itself,
    // never as text of a message
    std::vector<std::pair<std::string, std::string>> own_tokens;

    Result<jinja::MarkedText> render(const ordered_json& context,
                                     const TemplateLimits& limits) const;
};

ChatTemplate::ChatTemplate() : state_(std::make_unique<State>()) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::parse(std::string_view source) {
    std::shared_ptr<ChatTemplate> chat_template(new ChatTemplate());
    try {
        chat_template->state_->body = jinja::parse_template(source);
        chat_template->state_->source = source;
    } catch (const jinja::Failure& failure) {
        return Error{failure.code, text("chat template: ", failure.message)};
    }
    return std::shared_ptr<const ChatTemplate>(std::move(chat_template));
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::from_tokenizer_config(
    std::string_view tokenizer_config_json) {
    MOEX_ASSIGN(config, parse_strict_json(tokenizer_config_json, "tokenizer_config.json"));
    if (!config.is_object())
        return Error{ErrorCode::bad_file, "tokenizer_config.json is not a JSON object"};

    std::string source;
    bool found = false;
    if (const auto entry = config.find("chat_template"); entry != config.end()) {
        if (entry->is_string()) {
            source = entry->get<std::string>(), found = true;
        } else if (entry->is_array()) {
            for (const json& named : *entry) {
                const bool whole = named.is_object() && named.contains("name") &&
                                   named.contains("template") && named["template"].is_string();
                if (whole && named["name"] == "default")
                    source = named["template"].get<std::string>(), found = true;
            }
        }
    }

    if (!found) return Error{ErrorCode::not_found, "tokenizer_config.json has no chat_template"};
    MOEX_ASSIGN(parsed, parse(source));
    for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
        const auto token = config.find(name);
        if (token == config.end()) continue;
        const json& content = token->is_object() && token->contains("content") ? (*token)["content"]
                                                                               : *token;
        if (content.is_string())
            parsed->state_->own_tokens.emplace_back(name, content.get<std::string>());
    }

    return parsed;
}

Result<jinja::MarkedText> ChatTemplate::State::render(const ordered_json& context,
                                                      const TemplateLimits& limits) const {
    if (!context.is_object())
        return Error{ErrorCode::invalid_argument, "a template's variables are a JSON object"};

    try {
        jinja::Renderer renderer(limits);
        for (const auto& [name, value] : context.items())
            renderer.set_global(
                name, name == "messages" ? messages_value(value) : jinja::from_json(value));
        for (const auto& [name, token] : own_tokens)
            if (!context.contains(name))
                renderer.set_global(name, jinja::make_text(utf8_repair(token)));
        return renderer.run(body);
    } catch (const jinja::Failure& failure) {
        return Error{failure.code, text("chat template: ", failure.message)};
    }
}

Result<std::string> ChatTemplate::render(const ordered_json& context,
                                         const TemplateLimits& limits) const {
    MOEX_ASSIGN(rendered, state_->render(context, limits));
    return rendered.bytes();
}

Result<std::vector<TokenId>> ChatTemplate::render_ids(const ordered_json& messages,
                                                      const ordered_json& extra,
                                                      const Tokenizer& tokenizer,
                                                      const TemplateLimits& limits) const {
    MOEX_ASSIGN(context, chat_context(messages, extra));
    MOEX_ASSIGN(rendered, state_->render(context, limits));

    return tokenizer.encode(rendered.bytes(), rendered.outside());
}

Result<std::vector<TokenId>> ChatTemplate::render_open_ids(const ordered_json& messages,
                                                           const ordered_json& extra,
                                                           std::string_view last_words,
                                                           const Tokenizer& tokenizer,
                                                           const TemplateLimits& limits) const {
    MOEX_ASSIGN(context, chat_context(messages, extra));
    MOEX_ASSIGN(rendered, state_->render(context, limits));

    const std::optional<std::size_t> end = end_of_words(rendered, last_words);
    if (!end)
        return Error{ErrorCode::not_found,
                     "the chat template does not show the last message as it is"};
    const jinja::MarkedText open = rendered.part(0, *end);
    return tokenizer.encode(open.bytes(), open.outside());
}

bool ChatTemplate::mentions(std::string_view words) const {
    return state_->source.find(words) != std::string::npos;
}

}  // namespace moex
