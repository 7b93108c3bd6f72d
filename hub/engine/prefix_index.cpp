#include "hub/engine/prefix_index.h"

#include <utility>

#include "protocol/check.h"

namespace moex {

PrefixIndex::Key PrefixIndex::key_of(NodeId parent, const std::string& scope,
                                     std::span<const TokenId> tokens) {
    return {parent, parent == root ? scope : std::string(), {tokens.begin(), tokens.end()}};
}

const PrefixIndex::Node* PrefixIndex::find(NodeId parent, const std::string& scope,
                                           std::span<const TokenId> tokens) const {
    const auto found = nodes_.find(key_of(parent, scope, tokens));
    return found == nodes_.end() ? nullptr : &found->second;
}

PrefixIndex::NodeId PrefixIndex::insert(NodeId parent, const std::string& scope,
                                        std::span<const TokenId> tokens, std::uint32_t page,
                                        std::vector<std::uint64_t> workers) {
    MOEX_CHECK(!holds(page), text("page ", page, " is in the index already"));
    const auto [node, is_new] = nodes_.try_emplace(key_of(parent, scope, tokens),
                                                   Node{++last_id_, page, std::move(workers)});
    MOEX_CHECK(is_new, text("page ", page, " repeats page ", node->second.page));
    by_page_[page] = node;
    return node->second.id;
}

void PrefixIndex::erase(std::uint32_t page) {
    nodes_.erase(std::exchange(by_page_[page], nodes_.end()));
}

}  // namespace moex
