#include "hub/model/chat_template.h"

#include "hub/model/jinja/parser.h"
#include "hub/model/jinja/renderer.h"
#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {

using nlohmann::json;
using nlohmann::ordered_json;

struct ChatTemplate::State {
    jinja::Body body;
    // Control tokens of the checkpoint, e.g. bos_token:
    // the template's own words, never a message's.
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
            renderer.set_global(name, jinja::from_json(value));
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
    if (!extra.is_null() && !extra.is_object())
        return Error{ErrorCode::invalid_argument, "extra template variables are a JSON object"};

    // transformers always passes these, and templates ask "is not none".
    ordered_json context = {
        {"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", false}};
    if (extra.is_object())
        for (const auto& [name, value] : extra.items()) context[name] = value;
    context["messages"] = messages;
    MOEX_ASSIGN(rendered, state_->render(context, limits));

    return tokenizer.encode(rendered.bytes(), rendered.outside());
}

}  // namespace moex
