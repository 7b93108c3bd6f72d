// The checkpoint's own chat template (Jinja), evaluated within bounds on steps and output.
// Parsed once; rendering is const and thread-safe. The language is the subset that chat templates
// use; an unsupported construct is an error at parse time that names it and its line.
// Source: Jinja 3 template documentation; compared with npm @huggingface/jinja in tests.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/model/jinja/limits.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "protocol/result.h"

namespace moex {

class ChatTemplate {
  public:
    static Result<std::shared_ptr<const ChatTemplate>> parse(std::string_view source);
    // The template of tokenizer_config.json (a string, or the "default" of a list), with its
    // bos_token and eos_token; not_found when absent.
    static Result<std::shared_ptr<const ChatTemplate>> from_tokenizer_config(
        std::string_view tokenizer_config_json);
    ~ChatTemplate();

    // `context` holds messages, add_generation_prompt, tools, bos_token, … A call of
    // raise_exception() is invalid_argument.
    Result<std::string> render(const nlohmann::ordered_json& context,
                               const TemplateLimits& limits = {}) const;

    // The ids of a chat: control tokens that the template itself writes are tokens, the same
    // characters inside message contents are plain text, and so is every other variable a caller
    // gives. `messages`: [{role, content}, ...]; `extra`: further template variables.
    Result<std::vector<TokenId>> render_ids(const nlohmann::ordered_json& messages,
                                            const nlohmann::ordered_json& extra,
                                            const Tokenizer& tokenizer,
                                            const TemplateLimits& limits = {}) const;

    // The same, cut right behind the last place where the messages' own text says `last_words`:
    // the generation goes on with that very turn. not_found when the template shows them nowhere.
    // Source: transformers' apply_chat_template(continue_final_message=True).
    Result<std::vector<TokenId>> render_open_ids(const nlohmann::ordered_json& messages,
                                                 const nlohmann::ordered_json& extra,
                                                 std::string_view last_words,
                                                 const Tokenizer& tokenizer,
                                                 const TemplateLimits& limits = {}) const;

    // Whether the template's own text has `words`, e.g. "</think>".
    bool mentions(std::string_view words) const;

  private:
    ChatTemplate();
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
