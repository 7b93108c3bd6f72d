// The mask of tokens that may come next, for a grammar's state and a budget of tokens.
//
// The problem: a large vocabulary has 150,000 tokens, and a mask is needed for each token of an
// answer. Following each token byte by byte through all parses is too slow (fill_mask_plain() does
// it for tests).
//
// The way taken: most tokens stay inside one free text, e.g. a JSON string. The walk of the whole
// vocabulary through the automaton of that text is made once for each automaton state. It is kept
// for all requests of a hub, within a bound on bytes. Lengths, positions and the budget are no part
// of the cache key. Only tokens that leave the text are followed each time, from its border on.
//
// The budget: a token is not allowed if the answer could then no longer end within the tokens that
// are left. Each state knows its least bytes to an end, and one token for each byte is always
// possible. Inside a text this is decided at once for all tokens of one length, from the distances
// that the walk has kept.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "hub/api/grammar/grammar_state.h"
#include "hub/api/grammar/vocabulary.h"

namespace moex {

// Caches the walks of a vocabulary's trie through text automata, and evicts the least recently used
// walk first. Thread-safe.
class MaskCache {
  public:
    explicit MaskCache(std::uint64_t bytes_max = 64u << 20);
    ~MaskCache();

    // The result of a walk from one state of a text: the tokens that stay inside the text, and the
    // trie nodes at which other tokens may leave it.
    struct Walk {
        TokenBits inside;
        // After a token that stays inside the text, the text needs at least so many further bytes
        // to end. `least` is that number for most tokens, and `others` lists the tokens for which
        // the number differs.
        std::uint32_t least = 0;
        std::vector<std::pair<TokenId, std::uint32_t>> others;
        // In a JSON string: the quotes of the vocabulary's tokens (QuoteTails) at which the string
        // may end.
        TokenBits quotes;
        // In other texts: trie nodes that may be the first node after the text, sorted by the byte
        // of the node. The nodes of byte b are exits[begin[b] ... begin[b + 1]].
        std::vector<std::uint32_t> exits;
        std::uint32_t begin[257] = {};
        std::uint64_t num_bytes() const;
    };
    std::shared_ptr<const Walk> walk(const Vocabulary& vocabulary, const SharedAutomaton& texts,
                                     bool escaped, TextState at);
    std::uint64_t num_bytes() const;
    std::uint64_t num_walks() const;  // number of walks made so far, kept or evicted

  private:
    struct State;
    std::unique_ptr<State> state_;
};

struct MaskResult {
    bool by_budget = false;  // the token budget forbade a token that the grammar allows
};

// Writes the mask of allowed tokens into `bits`, [vocabulary.num_words()]. `tokens_left` includes
// the next token. End tokens are allowed if the state may end.
MaskResult fill_mask(const GrammarState& state, std::uint32_t tokens_left,
                     const Vocabulary& vocabulary, MaskCache& cache, std::span<std::uint64_t> bits);

// Writes the same mask as fill_mask(), but slowly: it follows each token by itself, byte by byte.
MaskResult fill_mask_plain(const GrammarState& state, std::uint32_t tokens_left,
                           const Vocabulary& vocabulary, std::span<std::uint64_t> bits);

// Advances the state by a token of the vocabulary; returns false if the token does not fit.
bool take_token(GrammarState& state, const Vocabulary& vocabulary, TokenId id);

}  // namespace moex
