// Which page holds the keys and values of which beginning of a text: a tree whose edges are whole
// pages of token ids. Exact: ids are compared, not hashes, so that no text can pass for another.
// A page's bits follow from the ids up to its end, the model and its arithmetic; the latter two are
// one a process. Each scope (a client) has a tree of its own: how much of a prompt was known tells
// nobody what another client wrote.
// Owner: the engine's thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hub/model/tokenizer/token_id.h"

namespace moex {

class PrefixIndex {
  public:
    using NodeId = std::uint64_t;
    static constexpr NodeId root = 0;

    struct Node {
        NodeId id = root;
        std::uint32_t page = 0;
        std::vector<std::uint64_t> workers;  // who computed experts of its rows; distinct, sorted
    };

    explicit PrefixIndex(std::uint32_t num_pages) : by_page_(num_pages, nodes_.end()) {}
    PrefixIndex(const PrefixIndex&) = delete;
    PrefixIndex& operator=(const PrefixIndex&) = delete;

    // The page that goes on with `tokens` behind `parent`; null: none. Valid until the next change.
    const Node* find(NodeId parent, const std::string& scope,
                     std::span<const TokenId> tokens) const;
    // Requires that find() gives none, and that `page` is in no node.
    NodeId insert(NodeId parent, const std::string& scope, std::span<const TokenId> tokens,
                  std::uint32_t page, std::vector<std::uint64_t> workers);
    bool holds(std::uint32_t page) const { return by_page_[page] != nodes_.end(); }
    const Node& node_of(std::uint32_t page) const { return by_page_[page]->second; }
    // What lies behind its node is not found any more.
    void erase(std::uint32_t page);

  private:
    struct Key {
        NodeId parent = root;
        std::string scope;  // of the root's children; empty elsewhere
        std::vector<TokenId> tokens;
        auto operator<=>(const Key&) const = default;
    };
    static Key key_of(NodeId parent, const std::string& scope, std::span<const TokenId> tokens);

    std::map<Key, Node> nodes_;
    std::vector<std::map<Key, Node>::iterator> by_page_;  // end(): in no node
    NodeId last_id_ = root;
};

}  // namespace moex
