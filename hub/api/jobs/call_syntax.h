// The syntax in which a model writes tool calls.
//
// The problem: many checkpoints share a marker, e.g. <tool_call>, and write different things behind
// it. A model that is told one syntax and forced into another calls badly. The solution: a call is
// rendered through the checkpoint's own template, and the text is compared with the syntaxes that
// the hub knows. Only a template that writes no calls of earlier turns is judged by its words.
#pragma once

#include <optional>
#include <string>

#include "hub/model/chat_template.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

struct CallSyntax {
    const char* name = "";
    bool is_known = true;  // true: the template has the syntax; false: the syntax is the default
    // An answer is `opens`, then for each call `before_name` NAME `before_arguments` ARGUMENTS
    // `behind`, with `between` before each further call, and `closes` at the end. Example (Hermes):
    //   <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>
    std::string opens, before_name, before_arguments, behind, between, closes;
    // Arguments that are no JSON object: for each member `before_key` KEY `before_value` VALUE
    // `after_value`. A text is written as it is, any other value as JSON. Empty: a JSON object.
    // Example (Qwen3-Coder): <parameter=a>\n1\n</parameter>\n
    std::string before_key = {}, before_value = {}, after_value = {};
    bool is_single = false;     // an answer has at most one call
    bool has_channels = false;  // the answers are in channels; channels.h reads and writes them
    std::optional<TokenId> opens_token = {};  // the token of `opens`, if `opens` is a single token
    bool has_parameters() const { return !before_key.empty(); }
};
CallSyntax call_syntax(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// Returns the text of a call with one argument, a text, in a syntax; without `opens` and `closes`.
std::string written_call(const CallSyntax& syntax, const std::string& name, const std::string& key,
                         const std::string& value);

}  // namespace moex
