// Which tokens may come next, for a grammar's state and the tokens that are left.
// What a text inside goes through is walked once for each state of its automaton and kept, for all
// requests of a hub, within a bound on bytes; lengths, positions and the budget are no part of the
// key. What leaves the text is looked at each time, from its border on.
// A token that leaves more than the budget holds is not allowed: each state knows its least bytes
// to an end, and each byte is a token. Inside a text that is decided for all tokens of one length
// at once, from the distances that the walk has kept.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "hub/api/grammar/grammar_state.h"
#include "hub/api/grammar/vocabulary.h"

namespace moex {

// Walks through the trie by one text automaton. Thread-safe.
class MaskCache {
  public:
    explicit MaskCache(std::uint64_t bytes_max = 64u << 20);
    ~MaskCache();

    // From one state of a text: which tokens stay inside it, and where others may leave it.
    struct Walk {
        TokenBits inside;
        // Bytes to the text's end from where an inside token ends: the same behind most of them;
        // behind the others, each by itself.
        std::uint32_t least = 0;
        std::vector<std::pair<TokenId, std::uint32_t>> others;
        // Inside a JSON string: of the vocabulary's quotes, those at which the text may end.
        TokenBits quotes;
        // Elsewhere: nodes of the trie that may be the first behind the text, by their byte: those
        // of byte b are exits[begin[b] ... begin[b + 1]].
        std::vector<std::uint32_t> exits;
        std::uint32_t begin[257] = {};
        std::uint64_t num_bytes() const;
    };
    std::shared_ptr<const Walk> walk(const Vocabulary& vocabulary, const SharedAutomaton& texts,
                                     bool escaped, TextState at);
    std::uint64_t num_bytes() const;
    std::uint64_t num_walks() const;  // made so far, kept or not

  private:
    struct State;
    std::unique_ptr<State> state_;
};

struct MaskResult {
    bool by_budget = false;  // the budget forbade what the grammar allows
};

// Writes [vocabulary.num_words()] bits; `tokens_left` counts the next one. Ends are allowed where
// the state may end.
MaskResult fill_mask(const GrammarState& state, std::uint32_t tokens_left,
                     const Vocabulary& vocabulary, MaskCache& cache, std::span<std::uint64_t> bits);

// The slow twin: each token by itself, byte by byte.
MaskResult fill_mask_plain(const GrammarState& state, std::uint32_t tokens_left,
                           const Vocabulary& vocabulary, std::span<std::uint64_t> bits);

// The state takes a token of the vocabulary; false: it does not fit.
bool take_token(GrammarState& state, const Vocabulary& vocabulary, TokenId id);

}  // namespace moex
