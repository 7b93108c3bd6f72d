// The tokens of a tokenizer as a grammar needs them: a trie over the bytes of the text tokens, and
// the ids of the other tokens. Immutable; one per hub.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// One bit for each token: token `id` has bit id % 64 of word id / 64.
using TokenBits = std::vector<std::uint64_t>;
inline void set_bit(std::span<std::uint64_t> bits, TokenId id) {
    bits[id / 64] |= std::uint64_t{1} << id % 64;
}
inline bool has_bit(std::span<const std::uint64_t> bits, TokenId id) {
    return bits[id / 64] >> id % 64 & 1;
}

struct TokenTrie {
    // Nodes in depth-first order, a node before its children. The descendants of node i are the
    // nodes [i + 1, end), and their tokens are contiguous as well. Node 0 is the root.
    // Example: the tokens "a", "ab" and "b" give the nodes root, a, ab, b with ends 4, 3, 3, 4.
    struct Node {
        std::uint32_t end = 0;
        // Index of the node's first token in `tokens`; the next node's index is the end.
        std::uint32_t first_token = 0;
        std::uint16_t depth = 0;
        unsigned char byte = 0;
        unsigned char code_points = 0;  // code points on the path from the root; at most 255
        bool has_backslash = false;     // a byte on the path from the root is a backslash
    };
    std::vector<Node> nodes;  // the last element is a sentinel
    std::vector<TokenId> tokens;

    explicit TokenTrie(std::vector<std::pair<std::string, TokenId>> texts);
    std::span<const TokenId> tokens_of(std::uint32_t node) const {
        return std::span(tokens).subspan(nodes[node].first_token,
                                         nodes[node + 1].first_token - nodes[node].first_token);
    }
    std::span<const TokenId> tokens_below(std::uint32_t node) const {
        const std::uint32_t first = nodes[node].first_token;
        return std::span(tokens).subspan(first, nodes[nodes[node].end].first_token - first);
    }
};

// The tails of all tokens after each '"' in them, e.g. `, "` of the token `ab", "`. A JSON string
// ends at the quote, whatever precedes it in the token. Tokens with equal tails continue in the
// same way, so each distinct tail is walked once.
struct QuoteTails {
    struct Entry {
        TokenId token = 0;
        std::uint32_t quote = 0;  // index in `quotes`
    };
    std::vector<std::uint32_t> quotes;  // nodes of the vocabulary's trie with a '"', ascending
    std::vector<Entry> entries;
    TokenTrie trie;  // trie of the tails; its tokens are indices of `entries`

    QuoteTails(const TokenTrie& tokens, std::span<const std::string> bytes);
    std::size_t num_words() const { return (quotes.size() + 63) / 64; }
};

class Vocabulary {
  public:
    // `ids` is the number of logits. An id beyond the tokenizer's vocabulary is never allowed, nor
    // is a token without bytes. `end_ids` are the tokens that end an answer.
    Vocabulary(const Tokenizer& tokenizer, std::size_t ids, std::vector<TokenId> end_ids);
    // Makes a vocabulary of the given tokens, for tests. All tokens except `special` and `end_ids`
    // are text.
    Vocabulary(std::vector<std::string> tokens, std::vector<TokenId> special,
               std::vector<TokenId> end_ids);

    std::size_t size() const { return bytes_.size(); }
    std::size_t num_words() const { return (size() + 63) / 64; }
    const TokenTrie& trie() const { return *trie_; }
    const QuoteTails& quote_tails() const { return *quote_tails_; }
    std::string_view bytes(TokenId id) const { return bytes_[id]; }
    bool is_text(TokenId id) const { return has_bit(text_, id); }
    std::span<const TokenId> end_ids() const { return end_ids_; }
    // Returns the special and added tokens, without the tokens that end an answer.
    std::span<const TokenId> special() const { return special_; }
    bool is_end(TokenId id) const;

    // The text tokens of at most `code_points` code points. The tokens of uncounted() are in no
    // row: those with a backslash, which may begin an escape, and those longer than rows_max().
    std::span<const std::uint64_t> at_most(std::uint32_t code_points) const;
    std::uint32_t rows_max() const { return static_cast<std::uint32_t>(at_most_.size() - 1); }
    std::span<const TokenId> uncounted() const { return uncounted_; }
    std::uint32_t code_points_max() const { return code_points_max_; }
    // Returns true if each byte of ASCII text and UTF-8 is a token by itself, so that a number of
    // bytes is also a possible number of tokens.
    bool has_all_bytes() const;

  private:
    void build(const std::vector<bool>& is_text);

    std::vector<std::string> bytes_;  // [ids], the bytes of each token; empty: never allowed
    TokenBits text_;
    std::vector<TokenId> end_ids_, special_, uncounted_;
    std::unique_ptr<const TokenTrie> trie_;
    std::unique_ptr<const QuoteTails> quote_tails_;
    std::vector<TokenBits> at_most_;
    std::uint32_t code_points_max_ = 0;
};

}  // namespace moex
