// Adds the fixed texts of a call syntax to a grammar. A part of a text that the vocabulary has as a
// token (CallSyntax::markers) becomes this token.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/jobs/call_syntax.h"
#include "hub/api/jobs/grammar_nodes.h"

namespace moex {

inline NodeId add_fixed(std::vector<GrammarNode>& nodes, const CallSyntax& syntax,
                        std::string_view words) {
    std::vector<NodeId> parts;
    for (const FixedPart& one : fixed_parts(syntax, words))
        parts.push_back(one.marker ? add_node(nodes, {.kind = GrammarNode::Kind::token,
                                                      .token = one.marker->id})
                                   : add_words(nodes, std::string(one.words)));
    if (parts.empty()) return add_words(nodes, std::string());
    return parts.size() == 1 ? parts[0] : add_sequence(nodes, std::move(parts));
}

// Adds free text up to and including a fixed text of a syntax.
inline NodeId add_text_until(std::vector<GrammarNode>& nodes, const CallSyntax& syntax,
                             std::string_view words) {
    const auto parts = fixed_parts(syntax, words);
    const bool has_token = std::any_of(parts.begin(), parts.end(),
                                       [](const FixedPart& one) { return one.marker != nullptr; });
    if (!has_token)
        return add_node(nodes, {.kind = GrammarNode::Kind::text, .texts = text_until(words)});
    const NodeId free = add_node(nodes,
                                 {.kind = GrammarNode::Kind::text, .texts = text_without(words)});
    return add_sequence(nodes, {free, add_fixed(nodes, syntax, words)});
}

}  // namespace moex
