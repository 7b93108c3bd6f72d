#include "hub/model/tokenizer/added_tokens.h"

namespace moex {

bool AddedToken::is_control() const {
    if (special) return true;
    // Markers such as <think> or [/INST] count as control tokens, too. Vocabularies add them
    // without the special flag, so that decoding shows them.
    return content.size() > 2 && ((content.front() == '<' && content.back() == '>') ||
                                  (content.front() == '[' && content.back() == ']'));
}

void AddedTokenMatcher::add(std::string_view content, std::size_t token_index) {
    if (content.empty()) return;
    starts_[static_cast<std::uint8_t>(content[0])] = true;
    std::uint32_t node = 0;
    for (const char c : content) {
        const std::uint64_t key = (std::uint64_t{node} << 8) | static_cast<std::uint8_t>(c);
        const auto [edge, added] = edges_.try_emplace(
            key, static_cast<std::uint32_t>(token_by_node_.size()));
        if (added) token_by_node_.push_back(-1);
        node = edge->second;
    }

    token_by_node_[node] = static_cast<int>(token_index);
}

int AddedTokenMatcher::longest_at(std::string_view text, std::size_t at,
                                  std::size_t& num_bytes) const {
    int found = -1;
    if (!starts_[static_cast<std::uint8_t>(text[at])]) return found;

    std::uint32_t node = 0;
    for (std::size_t i = at; i < text.size(); ++i) {
        const auto edge = edges_.find((std::uint64_t{node} << 8) |
                                      static_cast<std::uint8_t>(text[i]));
        if (edge == edges_.end()) break;
        node = edge->second;
        if (token_by_node_[node] >= 0) {
            found = token_by_node_[node];
            num_bytes = i + 1 - at;
        }
    }

    return found;
}

}  // namespace moex
