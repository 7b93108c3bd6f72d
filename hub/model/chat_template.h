// ChatTemplate renders the checkpoint's own chat template (Jinja) within bounds on evaluation steps
// and output size. A template is parsed once. Rendering is const and thread-safe. The language is
// the subset of Jinja that chat templates use. An unsupported construct is an error at parse time,
// which names the construct and its line. Source: Jinja 3 template documentation; compared with npm
// @huggingface/jinja in tests.
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
    // Reads the template of tokenizer_config.json (a string, or the entry "default" of a list), and
    // the tokens bos_token and eos_token. Returns not_found when the file has no template.
    static Result<std::shared_ptr<const ChatTemplate>> from_tokenizer_config(
        std::string_view tokenizer_config_json);
    ~ChatTemplate();

    // Renders the template. `context` has the template's variables: messages,
    // add_generation_prompt, tools, bos_token, … If the template calls raise_exception(), the error
    // is invalid_argument.
    Result<std::string> render(const nlohmann::ordered_json& context,
                               const TemplateLimits& limits = {}) const;

    // Returns the token ids of a rendered chat. Control tokens in the text of the template itself
    // become tokens. The same characters inside message contents, or in any other variable from the
    // caller, are plain text. The roles system, user, assistant and tool count as text of the
    // template. `messages` is [{role, content}, ...]; `extra` has further template variables.
    Result<std::vector<TokenId>> render_ids(const nlohmann::ordered_json& messages,
                                            const nlohmann::ordered_json& extra,
                                            const Tokenizer& tokenizer,
                                            const TemplateLimits& limits = {}) const;

    // Returns the ids of a chat like render_ids(), but cuts the text right behind the last
    // occurrence of `last_words` in the text of the messages. The generation then continues that
    // last message. Returns not_found when the rendered text does not contain `last_words`.
    // Source: transformers' apply_chat_template(continue_final_message=True).
    Result<std::vector<TokenId>> render_open_ids(const nlohmann::ordered_json& messages,
                                                 const nlohmann::ordered_json& extra,
                                                 std::string_view last_words,
                                                 const Tokenizer& tokenizer,
                                                 const TemplateLimits& limits = {}) const;

    // Returns true if the text of the template itself contains `words`, e.g. "</think>".
    bool mentions(std::string_view words) const;

  private:
    ChatTemplate();
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
