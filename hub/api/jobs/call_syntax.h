// The syntax in which a model writes tool calls.
//
// The problem: many checkpoints share a marker, e.g. <tool_call>, and write different things behind
// it. A model that is told one syntax and forced into another calls badly. The solution: a call is
// rendered through the checkpoint's own template, and the text is compared with the syntaxes that
// the hub knows. An unknown syntax is derived from several such renderings (call_probe.cpp). Only a
// template that writes no calls of earlier turns is judged by its words.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/chat_template.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// A token of the vocabulary that is written for a part of a syntax's fixed texts, e.g.
// </tool_call>.
struct MarkerToken {
    std::string text;
    TokenId id = 0;
};

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
    bool is_list = false;       // the calls are items of a list: "[" or " [" follows `opens`
    bool has_channels = false;  // the answers are in channels; channels.h reads and writes them
    // The added tokens in the texts above. The model writes such a part as this one token.
    std::vector<MarkerToken> markers = {};
    bool has_parameters() const { return !before_key.empty(); }
};
CallSyntax call_syntax(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// Derives an unknown syntax from what the template writes for several calls. nullopt: the template
// writes no calls, or in a way that the other fields of CallSyntax cannot describe.
std::optional<CallSyntax> derived_syntax(const ChatTemplate& chat_template);

// Returns the text of a call with one argument, a text, in a syntax; without `opens` and `closes`.
std::string written_call(const CallSyntax& syntax, const std::string& name, const std::string& key,
                         const std::string& value);

// Finds CallSyntax::markers in the vocabulary.
void find_markers(CallSyntax& syntax, const Tokenizer& tokenizer);
// Cuts a fixed text of a syntax at its markers. `marker` is null for a part that is plain text.
struct FixedPart {
    std::string_view words;
    const MarkerToken* marker = nullptr;
};
std::vector<FixedPart> fixed_parts(const CallSyntax& syntax, std::string_view words);

}  // namespace moex
