#include "hub/api/grammar/mask.h"

#include <algorithm>
#include <bit>

namespace moex {

using Leaf = Parse::Leaf;

namespace {

class MaskFiller {
  public:
    MaskFiller(const GrammarState& state, std::uint32_t tokens_left, const Vocabulary& vocabulary,
               MaskCache& cache, std::span<std::uint64_t> bits)
        : state_(state),
          vocabulary_(vocabulary),
          trie_(vocabulary.trie()),
          cache_(cache),
          budget_(tokens_left > 0 ? tokens_left - 1 : 0),
          bits_(bits) {}

    MaskResult run() {
        // Fill in the tokens of each text leaf by itself, including tokens that leave the text.
        // Walk all other leaves together.
        Parses open(state_.parses().begin(), state_.parses().end()), walked;
        for (std::size_t i = 0; i < open.size(); ++i) {
            const Parse parse = open[i];  // a copy, since `open` grows below
            if (parse.leaf == Leaf::text || parse.leaf == Leaf::name) {
                fill_text(parse);
                continue;
            }
            walked.push_back(parse);
            if (state_.may_end(parse)) state_.resume(parse, open);
        }
        walk(walked, 1, trie_.nodes[0].end);
        fill_tokens();
        return result_;
    }

  private:
    // Walks the nodes [begin, end) of `trie` and their descendants; their bytes follow the text
    // that led to the parses `from`. Calls `visit` for each node that some parse reaches; `visit`
    // returns false to skip the descendants of the node.
    template <typename Visit>
    void walk(const TokenTrie& trie, const Parses& from, std::uint32_t begin, std::uint32_t end,
              const Visit& visit) {
        if (begin >= end || from.empty()) return;
        const std::uint32_t base = trie.nodes[begin].depth - 1u;
        std::vector<Level> levels(1);
        levels[0].parses = from;

        for (std::uint32_t i = begin; i < end;) {
            const TokenTrie::Node& node = trie.nodes[i];
            const std::uint32_t depth = node.depth - base;
            if (levels.size() <= depth) levels.resize(depth + 1);
            Level& before = levels[depth - 1];
            if (!before.is_expanded) {
                state_.expand(before.parses, before.expanded);
                before.is_expanded = true;
            }

            Level& here = levels[depth];
            here.is_expanded = false;
            state_.step(before.expanded, node.byte, here.parses);
            i = !here.parses.empty() && visit(i, here.parses) ? i + 1 : node.end;
        }
    }

    void walk(const Parses& from, std::uint32_t begin, std::uint32_t end) {
        walk(trie_, from, begin, end, [&](std::uint32_t node, const Parses& at) {
            allow(trie_.tokens_of(node), at);
            return true;
        });
    }

    void allow(std::span<const TokenId> tokens, const Parses& parses) {
        if (!tokens.empty()) allow(tokens, state_.least(parses));
    }

    void allow(std::span<const TokenId> tokens, std::uint32_t least) {
        if (tokens.empty()) return;
        if (least > budget_) {
            result_.by_budget = true;
            return;
        }
        for (const TokenId id : tokens) set_bit(bits_, id);
    }

    void fill_text(const Parse& parse) {
        const GrammarNode& node = *parse.node;
        const bool is_name = parse.leaf == Leaf::name;
        const SharedAutomaton& texts = is_name && !node.texts ? any_name() : node.texts;
        const bool escaped = is_name || node.escaped;
        const auto kept = cache_.walk(vocabulary_, texts, escaped, parse.text);
        if (is_name)
            fill_name(parse, *kept);
        else
            fill_inside(parse, *kept);
        if (escaped)
            fill_tails(parse, *kept);
        else
            fill_exits(parse, *kept);
    }

    static const SharedAutomaton& any_name() {
        static const SharedAutomaton texts = any_text();
        return texts;
    }

    // Allows the tokens that stay inside the text and whose distance to its end is kept.least,
    // except the tokens of `taken_out`. Tokens of more than `longest` code points do not fit.
    // Tokens below `shortest`, and all tokens if they are not `affordable`, are forbidden by the
    // budget.
    struct Lengths {
        std::uint32_t shortest = 0, longest = unbounded;
        bool counted = false;  // true: check lengths, and leave out the tokens of uncounted()
    };
    void fill_common(const MaskCache::Walk& kept, const Lengths& lengths, bool affordable,
                     std::span<const TokenId> taken_out) {
        TokenBits some = kept.inside;
        for (const auto& [id, least] : kept.others) some[id / 64] &= ~(std::uint64_t{1} << id % 64);
        for (const TokenId id : taken_out) some[id / 64] &= ~(std::uint64_t{1} << id % 64);

        const auto fits = vocabulary_.at_most(lengths.longest);
        const auto too_short = vocabulary_.at_most(lengths.shortest - (lengths.shortest > 0));
        std::uint64_t forbidden = 0;
        for (std::size_t i = 0; i < bits_.size(); ++i) {
            std::uint64_t word = some[i];
            if (lengths.counted) word &= fits[i];
            const std::uint64_t refused = !affordable            ? word
                                          : lengths.shortest > 0 ? word & too_short[i]
                                                                 : 0;
            forbidden |= refused;
            bits_[i] |= word & ~refused;
        }
        if (forbidden != 0) result_.by_budget = true;
    }

    // Allows tokens that stay inside the text. Only the bounds of the text itself differ from token
    // to token; the bytes that the stack frames still need are the same for all tokens.
    void fill_inside(const Parse& parse, const MaskCache::Walk& kept) {
        const GrammarNode& node = *parse.node;
        const std::uint32_t behind = state_.least_behind(parse);
        const std::uint32_t missing = node.min - std::min(node.min, parse.code_points);
        const std::uint32_t room = node.max == unbounded ? unbounded : node.max - parse.code_points;
        const bool is_free = missing == 0 && room >= vocabulary_.code_points_max();
        // Inside an open escape each token is decided by itself: the tables of token lengths do not
        // know how much of a token the escape consumes.
        if (!is_free && parse.text.escape != 0) return fill_inside_each(parse, kept, behind);

        const std::uint32_t needed = add_least(behind, kept.least);
        const bool affordable = needed <= budget_;
        const std::uint32_t slack = affordable ? budget_ - needed : 0;
        Lengths lengths{.longest = room, .counted = !is_free};
        lengths.shortest = missing - std::min(missing, slack);
        if (lengths.shortest > vocabulary_.rows_max()) return fill_inside_each(parse, kept, behind);
        fill_common(kept, lengths, affordable, {});

        if (is_free) {
            for (const auto& [id, least] : kept.others)
                allow(std::span(&id, 1), add_least(least, behind));
            return;
        }
        for (const auto& [id, least] : kept.others) fill_counted(parse, id, least, behind);
        for (const TokenId id : vocabulary_.uncounted())
            if (has_bit(kept.inside, id) && !is_other(kept, id))
                fill_counted(parse, id, kept.least, behind);
    }

    // Calls `visit` for each token that stays inside the text, with the least bytes from the token
    // to the text's end.
    template <typename Visit>
    static void for_inside(const MaskCache::Walk& kept, const Visit& visit) {
        auto other = kept.others.begin();
        for (std::size_t i = 0; i < kept.inside.size(); ++i)
            for (std::uint64_t word = kept.inside[i]; word != 0; word &= word - 1) {
                const auto id = static_cast<TokenId>(64 * i) +
                                static_cast<TokenId>(std::countr_zero(word));
                while (other != kept.others.end() && other->first < id) ++other;
                const bool is_other = other != kept.others.end() && other->first == id;
                visit(id, is_other ? other->second : kept.least);
            }
    }

    // Decides each token that stays inside the text by that token's length.
    void fill_inside_each(const Parse& parse, const MaskCache::Walk& kept, std::uint32_t behind) {
        for_inside(
            kept, [&](TokenId id, std::uint32_t least) { fill_counted(parse, id, least, behind); });
    }

    // Decides one token that stays inside the text, with `least` bytes from its end to the text's
    // end. `least` does not include the code points that the text still lacks.
    void fill_counted(const Parse& parse, TokenId id, std::uint32_t least, std::uint32_t behind) {
        const GrammarNode& node = *parse.node;
        const std::uint64_t length = parse.code_points + code_points_in(node.escaped, parse.text,
                                                                        vocabulary_.bytes(id));
        if (length > node.max) return;
        const std::uint64_t missing = node.min - std::min<std::uint64_t>(node.min, length);
        allow(std::span(&id, 1),
              add_least(add_least(static_cast<std::uint32_t>(missing), least), behind));
    }

    // Allows tokens that stay inside the name of a further member. A name that equals a taken name
    // needs further characters. Only a few tokens can produce such a name: tokens that complete a
    // taken name, and tokens with escapes.
    void fill_name(const Parse& name, const MaskCache::Walk& kept) {
        const std::uint32_t behind = state_.least_behind(name);
        const std::uint32_t detour = longest_name_detour(name);
        const std::uint32_t open_detour = name.frame->taken->empty() ? 0 : detour;
        std::uint32_t least_max = kept.least;
        for (const auto& [id, least] : kept.others) least_max = std::max(least_max, least);
        if (add_least(add_least(least_max, detour), behind) <= budget_) {
            for (std::size_t i = 0; i < bits_.size(); ++i) bits_[i] |= kept.inside[i];
            return;
        }
        if (kept.least != 0 || name.text.escape != 0 || name.node->texts)
            return for_inside(kept, [&](TokenId id, std::uint32_t least) {
                const std::uint32_t needed = add_least(least, behind);
                if (needed > budget_ || add_least(needed, detour) <= budget_)
                    allow(std::span(&id, 1), needed);
                else
                    fill_name_token(name, id);
            });

        for (const auto& [id, least] : kept.others)
            allow(std::span(&id, 1), add_least(add_least(least, open_detour), behind));
        std::vector<TokenId> special = ends_of_taken(name);
        for (const TokenId id : vocabulary_.uncounted())
            if (has_bit(kept.inside, id)) special.push_back(id);
        fill_common(kept, {}, behind <= budget_, special);
        for (const TokenId id : special) {
            if (!has_bit(kept.inside, id) || is_other(kept, id)) continue;
            if (behind > budget_ || add_least(behind, detour) <= budget_)
                allow(std::span(&id, 1), behind);
            else
                fill_name_token(name, id);
        }
    }

    static bool is_other(const MaskCache::Walk& kept, TokenId id) {
        const auto found = std::lower_bound(kept.others.begin(), kept.others.end(),
                                            std::pair<TokenId, std::uint32_t>(id, 0));
        return found != kept.others.end() && found->first == id;
    }

    static std::uint32_t longest_name_detour(const Parse& name) {
        return least_name_bytes(name.frame->taken->size(), name.node->name_choices);
    }

    // Returns the tokens after which the name equals a name that the object already has.
    std::vector<TokenId> ends_of_taken(const Parse& name) const {
        std::vector<TokenId> out;
        for (std::uint32_t i = name.first; i < name.last; ++i) {
            const std::string_view taken = *(*name.frame->taken)[i];
            const std::uint32_t node = find_node(taken.substr(name.depth));
            if (node == 0) continue;
            const auto tokens = trie_.tokens_of(node);
            out.insert(out.end(), tokens.begin(), tokens.end());
        }
        return out;
    }

    // Returns the trie node of `bytes`, or the root if the trie has no such node.
    std::uint32_t find_node(std::string_view bytes) const {
        std::uint32_t at = 0;
        for (const char byte : bytes) {
            std::uint32_t child = at + 1;
            const std::uint32_t end = trie_.nodes[at].end;
            while (child < end && trie_.nodes[child].byte != static_cast<unsigned char>(byte))
                child = trie_.nodes[child].end;
            if (child >= end) return 0;
            at = child;
        }
        return at;
    }

    void fill_name_token(const Parse& name, TokenId id) {
        Parses at{name}, next;
        for (const char c : vocabulary_.bytes(id)) {
            state_.step(at, static_cast<unsigned char>(c), next);
            if (next.empty()) return;
            at.swap(next);
        }
        allow(std::span(&id, 1), at);
    }

    // Returns true if the bounds on length allow the text to end at any place in any token of the
    // vocabulary.
    bool is_length_free(const Parse& parse) const {
        const GrammarNode& node = *parse.node;
        return node.min <= parse.code_points &&
               (node.max == unbounded ||
                node.max - parse.code_points >= vocabulary_.code_points_max());
    }

    // Allows tokens that leave a text which is not a JSON string: from each trie node that may be
    // the first after the text, the parses that follow the text are walked.
    void fill_exits(const Parse& parse, const MaskCache::Walk& kept) {
        const bool is_free = is_length_free(parse);
        Parses resumed, expanded, next;
        for (unsigned byte = 0; byte < 256; ++byte) {
            if (kept.begin[byte] == kept.begin[byte + 1]) continue;
            if (expanded.empty()) {
                state_.resume(parse, resumed);
                state_.expand(resumed, expanded);
            }
            state_.step(expanded, static_cast<unsigned char>(byte), next);
            if (next.empty()) continue;
            Behind behind(state_, next);
            for (std::uint32_t i = kept.begin[byte]; i < kept.begin[byte + 1]; ++i)
                if (is_free || may_leave(parse, kept.exits[i])) leave(behind, kept.exits[i]);
        }
    }

    // Allows tokens that leave a JSON string. Each distinct tail after a closing quote is walked
    // once, whatever precedes the quote in the tokens.
    void fill_tails(const Parse& parse, const MaskCache::Walk& kept) {
        Parses resumed, expanded, next;
        state_.resume(parse, resumed);
        state_.expand(resumed, expanded);
        state_.step(expanded, '"', next);
        if (next.empty()) return;
        if (parse.leaf == Leaf::name) return fill_name_tails(parse, kept, next);

        const QuoteTails& tails = vocabulary_.quote_tails();
        const bool is_free = is_length_free(parse);
        const auto may_leave_at = [&](std::uint32_t quote) {
            return has_bit(kept.quotes, quote) &&
                   (is_free || may_leave(parse, tails.quotes[quote]));
        };
        allow_tails(tails.trie.tokens_of(0), next, may_leave_at);
        walk(tails.trie, next, 1, tails.trie.nodes[0].end,
             [&](std::uint32_t node, const Parses& at) {
                 allow_tails(tails.trie.tokens_of(node), at, may_leave_at);
                 return true;
             });
    }

    // Allows the tokens of those `entries` that may leave the text at their quote; the tails of
    // these entries (the bytes after the quote) lead to the parses `at`.
    template <typename MayLeave>
    void allow_tails(std::span<const TokenId> entries, const Parses& at,
                     const MayLeave& may_leave_at) {
        if (entries.empty()) return;
        const QuoteTails& tails = vocabulary_.quote_tails();
        const bool affordable = state_.least(at) <= budget_;
        if (!affordable && result_.by_budget) return;
        for (const TokenId entry : entries) {
            const auto& [token, quote] = tails.entries[entry];
            if (!may_leave_at(quote)) continue;
            if (affordable)
                set_bit(bits_, token);
            else
                result_.by_budget = true;
        }
    }

    // Allows tokens that leave a name. Such a token ends the name of a member. The name must differ
    // from all names of the object, and the object then remembers it. So a tail that continues
    // after the value of the member is followed token by token.
    void fill_name_tails(const Parse& name, const MaskCache::Walk& kept, const Parses& next) {
        const QuoteTails& tails = vocabulary_.quote_tails();
        const TokenBits free = free_quotes(name, kept);
        const auto may_leave_at = [&](std::uint32_t quote) {
            const std::uint32_t exit = tails.quotes[quote];
            return has_bit(free, quote) && (is_plain(name, exit) || is_free_by_steps(name, exit));
        };
        // A tail of at most three bytes (`: 1`) cannot contain another name.
        constexpr std::uint32_t nameless = 3;
        allow_tails(tails.trie.tokens_of(0), next, may_leave_at);
        walk(tails.trie, next, 1, tails.trie.nodes[0].end,
             [&](std::uint32_t node, const Parses& at) {
                 const auto own = tails.trie.tokens_of(node);
                 allow_tails(own, at, may_leave_at);
                 if (tails.trie.nodes[node].depth < nameless) return true;
                 for (const TokenId entry : tails.trie.tokens_below(node).subspan(own.size()))
                     if (may_leave_at(tails.entries[entry].quote))
                         follow(name, tails.entries[entry]);
                 return false;
             });
    }

    // Follows a token that leaves a member's name at the closing quote, byte by byte.
    void follow(const Parse& name, const QuoteTails::Entry& entry) {
        const std::string_view bytes = vocabulary_.bytes(entry.token);
        const std::uint32_t exit = vocabulary_.quote_tails().quotes[entry.quote];
        Parses at{name}, next, expanded;
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            const auto byte = static_cast<unsigned char>(bytes[i]);
            if (i + 1 < trie_.nodes[exit].depth) {
                state_.step(at, byte, next);
            } else {
                state_.expand(at, expanded);
                state_.step(expanded, byte, next);
            }
            if (next.empty()) return;
            at.swap(next);
        }
        allow(std::span(&entry.token, 1), at);
    }

    // Returns true if the token's bytes from the name so far to this quote contain no escape, so
    // that they need no decoding.
    bool is_plain(const Parse& name, std::uint32_t exit) const {
        return name.first == name.last ||
               (!trie_.nodes[exit].has_backslash && name.text.escape == 0);
    }

    // Returns the quotes in tokens at which a member's name may end, without the quotes at which
    // the name's plain text equals a taken name.
    TokenBits free_quotes(const Parse& name, const MaskCache::Walk& kept) const {
        const std::vector<std::uint32_t>& quotes = vocabulary_.quote_tails().quotes;
        TokenBits free = kept.quotes;
        for (std::uint32_t i = name.first; i < name.last && name.text.escape == 0; ++i) {
            const std::string rest = (*name.frame->taken)[i]->substr(name.depth) + '"';
            const std::uint32_t node = find_node(rest);
            const auto at = std::lower_bound(quotes.begin(), quotes.end(), node);
            if (at == quotes.end() || *at != node) continue;
            const auto quote = static_cast<std::size_t>(at - quotes.begin());
            free[quote / 64] &= ~(std::uint64_t{1} << quote % 64);
        }
        return free;
    }

    bool is_free_by_steps(const Parse& name, std::uint32_t exit) {
        Parses at{name}, next;
        for (const char c : text_before(exit)) {
            state_.step(at, static_cast<unsigned char>(c), next);
            if (next.empty()) return false;
            at.swap(next);
        }
        return state_.may_end(at.front());
    }

    // The cached parses after the end of a text and one more byte; many trie nodes have the same
    // parses.
    struct Behind {
        Behind(const GrammarState& state, const Parses& at) : parses(at), least(state.least(at)) {}
        const Parses& parses;
        std::uint32_t least;
    };

    void leave(const Behind& behind, std::uint32_t exit) {
        const std::span<const TokenId> tokens = trie_.tokens_of(exit);
        if (!tokens.empty() && behind.least > budget_) result_.by_budget = true;
        if (behind.least <= budget_)
            for (const TokenId id : tokens) set_bit(bits_, id);
        walk(behind.parses, exit + 1, trie_.nodes[exit].end);
    }

    // Returns the bytes on the path to an exit (a trie node after the end of the text), without the
    // byte of the exit itself.
    std::string_view text_before(std::uint32_t exit) const {
        const TokenId any = trie_.tokens[trie_.nodes[exit].first_token];
        return vocabulary_.bytes(any).substr(0, trie_.nodes[exit].depth - 1u);
    }

    // Returns true if the bounds on length allow the text to end right before the exit.
    bool may_leave(const Parse& parse, std::uint32_t exit) {
        const TokenTrie::Node& node = trie_.nodes[exit];
        const bool begins = (node.byte & 0xc0) != 0x80;
        if (!node.has_backslash && node.code_points < 255 && parse.text.escape == 0) {
            const std::uint64_t length = std::uint64_t{parse.code_points} + node.code_points -
                                         begins;
            return length >= parse.node->min && length <= parse.node->max;
        }
        Parses at{parse}, next;
        for (const char c : text_before(exit)) {
            state_.step(at, static_cast<unsigned char>(c), next);
            if (next.empty()) return false;
            at.swap(next);
        }
        return state_.may_end(at.front());
    }

    // Decides the tokens that are not text: named tokens, special tokens inside a text with
    // any_token, and end tokens.
    void fill_tokens() {
        const auto try_token = [&](TokenId id) {
            if (id >= vocabulary_.size()) return;
            GrammarState copy = state_;
            if (!copy.take_token(id)) return;
            if (copy.least() <= budget_)
                set_bit(bits_, id);
            else
                result_.by_budget = true;
        };
        for (const TokenId id : state_.grammar().named_tokens()) try_token(id);
        if (state_.grammar().has_any_token_text())
            for (const TokenId id : vocabulary_.special()) try_token(id);
        if (state_.may_end())
            for (const TokenId id : vocabulary_.end_ids()) set_bit(bits_, id);
    }

    struct Level {
        Parses parses, expanded;
        bool is_expanded = false;
    };

    const GrammarState& state_;
    const Vocabulary& vocabulary_;
    const TokenTrie& trie_;
    MaskCache& cache_;
    std::uint32_t budget_;
    std::span<std::uint64_t> bits_;
    MaskResult result_;
};

}  // namespace

MaskResult fill_mask(const GrammarState& state, std::uint32_t tokens_left,
                     const Vocabulary& vocabulary, MaskCache& cache,
                     std::span<std::uint64_t> bits) {
    std::fill(bits.begin(), bits.end(), 0);
    return MaskFiller(state, tokens_left, vocabulary, cache, bits).run();
}

bool take_token(GrammarState& state, const Vocabulary& vocabulary, TokenId id) {
    if (vocabulary.is_text(id)) return state.take(vocabulary.bytes(id));
    return state.take_token(id);
}

MaskResult fill_mask_plain(const GrammarState& state, std::uint32_t tokens_left,
                           const Vocabulary& vocabulary, std::span<std::uint64_t> bits) {
    std::fill(bits.begin(), bits.end(), 0);
    MaskResult result;
    for (TokenId id = 0; id < vocabulary.size(); ++id) {
        if (vocabulary.bytes(id).empty()) continue;
        if (vocabulary.is_end(id)) {
            const auto named = state.grammar().named_tokens();
            if (state.may_end()) set_bit(bits, id);
            if (!std::binary_search(named.begin(), named.end(), id)) continue;
        }
        GrammarState copy = state;
        if (!take_token(copy, vocabulary, id)) continue;
        if (tokens_left > 0 && copy.least() <= tokens_left - 1)
            set_bit(bits, id);
        else
            result.by_budget = true;
    }
    return result;
}

}  // namespace moex
