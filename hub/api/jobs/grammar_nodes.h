// Adds the nodes of an answer's grammar one by one: a node, a fixed text, a sequence of nodes. Each
// function returns the number of the node that it has added.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "hub/api/grammar/grammar.h"

namespace moex {

inline NodeId add_node(std::vector<GrammarNode>& nodes, GrammarNode node) {
    nodes.push_back(std::move(node));
    return static_cast<NodeId>(nodes.size() - 1);
}
inline NodeId add_words(std::vector<GrammarNode>& nodes, std::string words) {
    GrammarNode node{.kind = GrammarNode::Kind::words};
    node.words.add(std::move(words), 0, 0);
    return add_node(nodes, std::move(node));
}
inline NodeId add_sequence(std::vector<GrammarNode>& nodes, std::vector<NodeId> parts) {
    return add_node(nodes, {.kind = GrammarNode::Kind::sequence, .children = std::move(parts)});
}

}  // namespace moex
