// Finds the page that holds the keys and values for a given prefix of a text: a tree whose edges
// are whole pages of token ids.
//   pages of 2 tokens, texts 1 2 3 4 and 1 2 5 6:  root -[1 2]-> page 7 -[3 4]-> page 2
//                                                                       -[5 6]-> page 9
// The match is exact: ids are compared, not hashes, so that two texts can never be confused. The
// bits of a page follow from the ids up to its end, the model and its arithmetic; a process has
// only one model and one arithmetic. Each scope (a client) has its own tree, so that a client
// cannot learn from cached prompt lengths what another client wrote.
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
        // workers that computed experts for the page's rows; distinct, sorted
        std::vector<std::uint64_t> workers;
    };

    explicit PrefixIndex(std::uint32_t num_pages) : by_page_(num_pages, nodes_.end()) {}
    PrefixIndex(const PrefixIndex&) = delete;
    PrefixIndex& operator=(const PrefixIndex&) = delete;

    // Returns the child of `parent` that has a page with the given `tokens`; null if there is none.
    // The pointer is valid until the index changes.
    const Node* find(NodeId parent, const std::string& scope,
                     std::span<const TokenId> tokens) const;
    // Inserts a child of `parent` for `page`. Requires that find() returns null for the same
    // arguments, and that no node has this page.
    NodeId insert(NodeId parent, const std::string& scope, std::span<const TokenId> tokens,
                  std::uint32_t page, std::vector<std::uint64_t> workers);
    bool holds(std::uint32_t page) const { return by_page_[page] != nodes_.end(); }
    const Node& node_of(std::uint32_t page) const { return by_page_[page]->second; }
    // Removes the node of `page`. The pages below this node are no longer found.
    void erase(std::uint32_t page);

  private:
    struct Key {
        NodeId parent = root;
        std::string scope;  // set for children of the root; empty in deeper nodes
        std::vector<TokenId> tokens;
        // Not by <=>, which the C++ library of a tab (web-worker/processor) lacks for these.
        bool operator<(const Key& other) const {
            if (parent != other.parent) return parent < other.parent;
            const int by_scope = scope.compare(other.scope);
            return by_scope != 0 ? by_scope < 0 : tokens < other.tokens;
        }
    };
    static Key key_of(NodeId parent, const std::string& scope, std::span<const TokenId> tokens);

    std::map<Key, Node> nodes_;
    // per page: its node; end() if no node has the page
    std::vector<std::map<Key, Node>::iterator> by_page_;
    NodeId last_id_ = root;
};

}  // namespace moex
