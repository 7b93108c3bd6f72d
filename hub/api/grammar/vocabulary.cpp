#include "hub/api/grammar/vocabulary.h"

#include <algorithm>

namespace moex {
namespace {

// The longest token length, in code points, that has a row of bits. Few tokens are longer, so one
// row for each length costs little memory.
constexpr std::uint32_t code_point_rows_max = 64;

std::uint32_t code_points_of(std::string_view text) {
    return static_cast<std::uint32_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::vector<std::uint32_t> quotes_of(const TokenTrie& tokens) {
    std::vector<std::uint32_t> quotes;
    for (std::uint32_t i = 1; i < tokens.nodes[0].end; ++i)
        if (tokens.nodes[i].byte == '"') quotes.push_back(i);
    return quotes;
}

std::vector<QuoteTails::Entry> entries_of(const TokenTrie& tokens,
                                          std::span<const std::uint32_t> quotes) {
    std::vector<QuoteTails::Entry> entries;
    for (std::uint32_t quote = 0; quote < quotes.size(); ++quote)
        for (const TokenId token : tokens.tokens_below(quotes[quote]))
            entries.push_back({.token = token, .quote = quote});
    return entries;
}

}  // namespace

QuoteTails::QuoteTails(const TokenTrie& tokens, std::span<const std::string> bytes)
    : quotes(quotes_of(tokens)),
      entries(entries_of(tokens, quotes)),
      trie([&] {
          std::vector<std::pair<std::string, TokenId>> tails;
          for (const Entry& entry : entries)
              tails.emplace_back(bytes[entry.token].substr(tokens.nodes[quotes[entry.quote]].depth),
                                 static_cast<TokenId>(tails.size()));
          return TokenTrie(std::move(tails));
      }()) {}

TokenTrie::TokenTrie(std::vector<std::pair<std::string, TokenId>> texts) {
    std::sort(texts.begin(), texts.end());
    nodes.push_back({});
    // Nodes on the path of the preceding text, from the root on.
    std::vector<std::uint32_t> path{0};
    std::string before;
    const auto close = [&](std::size_t depth) {
        for (; path.size() > depth + 1; path.pop_back())
            nodes[path.back()].end = static_cast<std::uint32_t>(nodes.size());
    };

    for (const auto& [bytes, id] : texts) {
        const auto differs = std::mismatch(bytes.begin(), bytes.end(), before.begin(),
                                           before.end());
        close(static_cast<std::size_t>(differs.first - bytes.begin()));
        while (path.size() <= bytes.size()) {
            const auto byte = static_cast<unsigned char>(bytes[path.size() - 1]);
            const Node& parent = nodes[path.back()];
            const bool begins = (byte & 0xc0) != 0x80;
            Node node{.first_token = static_cast<std::uint32_t>(tokens.size()),
                      .depth = static_cast<std::uint16_t>(path.size()),
                      .byte = byte,
                      .code_points = static_cast<unsigned char>(
                          std::min(255, parent.code_points + begins)),
                      .has_backslash = parent.has_backslash || byte == '\\'};
            path.push_back(static_cast<std::uint32_t>(nodes.size()));
            nodes.push_back(node);
        }
        tokens.push_back(id);
        before = bytes;
    }
    close(0);
    nodes[0].end = static_cast<std::uint32_t>(nodes.size());
    nodes.push_back({.end = 0, .first_token = static_cast<std::uint32_t>(tokens.size())});
}

Vocabulary::Vocabulary(const Tokenizer& tokenizer, std::size_t ids, std::vector<TokenId> end_ids)
    : bytes_(ids),
      end_ids_(std::move(end_ids)) {
    std::vector<bool> is_text(ids, false);
    for (TokenId id = 0; id < std::min(ids, tokenizer.vocab_size()); ++id) {
        bytes_[id] = tokenizer.token_bytes(id);
        is_text[id] = !bytes_[id].empty() && !tokenizer.is_added(id) && !is_end(id);
    }
    build(is_text);
}

Vocabulary::Vocabulary(std::vector<std::string> tokens, std::vector<TokenId> special,
                       std::vector<TokenId> end_ids)
    : bytes_(std::move(tokens)),
      end_ids_(std::move(end_ids)) {
    std::vector<bool> is_text(bytes_.size(), true);
    for (TokenId id = 0; id < bytes_.size(); ++id)
        is_text[id] = !bytes_[id].empty() && !is_end(id) &&
                      std::find(special.begin(), special.end(), id) == special.end();
    build(is_text);
}

void Vocabulary::build(const std::vector<bool>& is_text) {
    std::erase_if(end_ids_, [&](TokenId id) { return id >= bytes_.size(); });
    text_.assign(num_words(), 0);
    std::vector<std::pair<std::string, TokenId>> texts;
    std::vector<std::uint32_t> lengths(bytes_.size(), 0);
    for (TokenId id = 0; id < bytes_.size(); ++id) {
        if (!is_text[id]) {
            if (!bytes_[id].empty() && !is_end(id)) special_.push_back(id);
            continue;
        }
        set_bit(text_, id);
        texts.emplace_back(bytes_[id], id);
        lengths[id] = code_points_of(bytes_[id]);
        code_points_max_ = std::max(code_points_max_, lengths[id]);
        if (bytes_[id].find('\\') != std::string::npos || lengths[id] > code_point_rows_max)
            uncounted_.push_back(id);
    }

    at_most_.resize(std::min(code_points_max_, code_point_rows_max) + 1, TokenBits(num_words(), 0));
    for (std::uint32_t most = 0; most < at_most_.size(); ++most)
        for (const auto& [bytes, id] : texts)
            if (lengths[id] <= most && bytes.find('\\') == std::string::npos)
                set_bit(at_most_[most], id);
    trie_ = std::make_unique<const TokenTrie>(std::move(texts));
    quote_tails_ = std::make_unique<const QuoteTails>(*trie_, bytes_);
}

bool Vocabulary::is_end(TokenId id) const {
    return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end();
}

std::span<const std::uint64_t> Vocabulary::at_most(std::uint32_t code_points) const {
    return at_most_[std::min<std::size_t>(code_points, at_most_.size() - 1)];
}

bool Vocabulary::has_all_bytes() const {
    std::vector<bool> has(256, false);
    const TokenTrie& trie = *trie_;
    for (std::uint32_t i = 1; i < trie.nodes[0].end; i = trie.nodes[i].end)
        if (!trie.tokens_of(i).empty()) has[trie.nodes[i].byte] = true;
    for (unsigned byte = 0x20; byte < 0xf5; ++byte)
        if (!has[byte] && byte != 0x7f && byte != 0xc0 && byte != 0xc1) return false;
    return has['\n'];
}

}  // namespace moex
