#include "hub/api/grammar/mask.h"

#include <algorithm>

namespace moex {

using Leaf = Reading::Leaf;
using Readings = GrammarState::Readings;

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
        // Texts go their own way, with what is behind them; the others are walked together.
        Readings open(state_.readings().begin(), state_.readings().end()), walked;
        for (std::size_t i = 0; i < open.size(); ++i) {
            const Reading reading = open[i];  // `open` grows
            if (reading.leaf == Leaf::text || reading.leaf == Leaf::name) {
                fill_text(reading);
                continue;
            }
            walked.push_back(reading);
            if (state_.may_end(reading)) state_.resume(reading, open);
        }
        walk(walked, 1, trie_.nodes[0].end);
        fill_tokens();
        return result_;
    }

  private:
    // Tokens of the nodes in [begin, end), which are children of the place where `from` stands,
    // with all that lies below them.
    void walk(const Readings& from, std::uint32_t begin, std::uint32_t end) {
        if (begin >= end || from.empty()) return;
        const std::uint32_t base = trie_.nodes[begin].depth - 1u;
        std::vector<Level> levels(1);
        levels[0].readings = from;

        for (std::uint32_t i = begin; i < end;) {
            const TokenTrie::Node& node = trie_.nodes[i];
            const std::uint32_t depth = node.depth - base;
            if (levels.size() <= depth) levels.resize(depth + 1);
            Level& before = levels[depth - 1];
            if (!before.is_expanded) {
                state_.expand(before.readings, before.expanded);
                before.is_expanded = true;
            }

            Level& here = levels[depth];
            here.is_expanded = false;
            state_.step(before.expanded, node.byte, here.readings);
            if (here.readings.empty()) {
                i = node.end;
                continue;
            }
            allow(trie_.tokens_of(i), here.readings);
            ++i;
        }
    }

    void allow(std::span<const TokenId> tokens, const Readings& readings) {
        if (!tokens.empty()) allow(tokens, state_.least(readings));
    }

    void allow(std::span<const TokenId> tokens, std::uint32_t least) {
        if (tokens.empty()) return;
        if (least > budget_) {
            result_.by_budget = true;
            return;
        }
        for (const TokenId id : tokens) set_bit(bits_, id);
    }

    void fill_text(const Reading& reading) {
        const GrammarNode& node = *reading.node;
        const bool is_name = reading.leaf == Leaf::name;
        const SharedAutomaton& texts = is_name ? any_name() : node.texts;
        const bool escaped = is_name || node.escaped;
        const auto kept = cache_.walk(vocabulary_, texts, escaped, reading.text);
        if (is_name)
            fill_name(reading, *kept);
        else
            fill_inside(reading, *kept);
        fill_exits(reading, *kept);
    }

    static const SharedAutomaton& any_name() {
        static const SharedAutomaton texts = any_text();
        return texts;
    }

    // Inside tokens that leave kept.least bytes, of at least `shortest` and at most `longest` code
    // points; `taken_out` aside. Says what the budget forbids.
    struct Lengths {
        std::uint32_t shortest = 0, longest = unbounded;
        bool counted = false;  // uncounted() ones are not meant
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

    // Where only the text's own bounds count; the frames behind it are the same for all.
    void fill_inside(const Reading& reading, const MaskCache::Walk& kept) {
        const GrammarNode& node = *reading.node;
        const std::uint32_t behind = state_.least_behind(reading);
        const std::uint32_t missing = node.min - std::min(node.min, reading.code_points);
        const std::uint32_t room = node.max == unbounded ? unbounded
                                                         : node.max - reading.code_points;
        const bool is_free = missing == 0 && room >= vocabulary_.code_points_max();
        // An escape that has begun counts otherwise than its bytes do.
        if (!is_free && reading.text.escape != 0) return fill_inside_slowly(reading, behind);

        const std::uint32_t needed = add_least(behind, kept.least);
        const bool affordable = needed <= budget_;
        const std::uint32_t slack = affordable ? budget_ - needed : 0;
        Lengths lengths{.longest = room, .counted = !is_free};
        lengths.shortest = missing - std::min(missing, slack);
        if (lengths.shortest > vocabulary_.rows_max()) return fill_inside_slowly(reading, behind);
        fill_common(kept, lengths, affordable, {});

        if (is_free) {
            for (const auto& [id, least] : kept.others)
                allow(std::span(&id, 1), add_least(least, behind));
            return;
        }
        for (const auto& [id, least] : kept.others) fill_one(reading, id, behind);
        for (const TokenId id : vocabulary_.uncounted())
            if (has_bit(kept.inside, id)) fill_one(reading, id, behind);
    }

    struct TextPlace {
        TextState text;
        std::uint32_t code_points = 0;
        bool step(const GrammarNode& node, unsigned char byte) {
            return step_in_text(node, text, code_points, byte);
        }
        std::uint32_t least(const GrammarNode& node) const {
            return least_in_text(node, text, code_points);
        }
    };

    // A token that stays in the text, by itself.
    void fill_one(const Reading& reading, TokenId id, std::uint32_t behind) {
        TextPlace at{reading.text, reading.code_points};
        for (const char c : vocabulary_.bytes(id))
            if (!at.step(*reading.node, static_cast<unsigned char>(c))) return;
        allow(std::span(&id, 1), add_least(at.least(*reading.node), behind));
    }

    // Each place of the trie by its own length and distance.
    void fill_inside_slowly(const Reading& reading, std::uint32_t behind) {
        std::vector<TextPlace> path{{reading.text, reading.code_points}};
        for (std::uint32_t i = 1; i < trie_.nodes[0].end;) {
            const TokenTrie::Node& node = trie_.nodes[i];
            path.resize(node.depth);
            TextPlace at = path.back();
            if (!at.step(*reading.node, node.byte)) {
                i = node.end;
                continue;
            }
            path.push_back(at);
            allow(trie_.tokens_of(i), add_least(at.least(*reading.node), behind));
            ++i;
        }
    }

    // A name that is a taken one needs further characters. Which of the tokens make it one is seen
    // in a few: those that end a taken name, and those whose escapes may.
    void fill_name(const Reading& name, const MaskCache::Walk& kept) {
        const std::uint32_t behind = state_.least_behind(name);
        const std::uint32_t detour = longest_name_detour(name);
        const std::uint32_t open_detour = name.frame->taken->empty() ? 0 : detour;
        std::uint32_t least_max = kept.least;
        for (const auto& [id, least] : kept.others) least_max = std::max(least_max, least);
        if (add_least(add_least(least_max, detour), behind) <= budget_) {
            for (std::size_t i = 0; i < bits_.size(); ++i) bits_[i] |= kept.inside[i];
            return;
        }
        if (kept.least != 0 || name.text.escape != 0) return fill_name_slowly(name);

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

    static std::uint32_t longest_name_detour(const Reading& name) {
        std::uint32_t bytes = 1;
        for (std::uint64_t names = 93; names <= name.frame->taken->size(); names *= 93) ++bytes;
        return bytes;
    }

    // Tokens that make a name one of the taken.
    std::vector<TokenId> ends_of_taken(const Reading& name) const {
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

    // The node of these bytes; the root where there is none.
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

    void fill_name_token(const Reading& name, TokenId id) {
        Readings at{name}, next;
        for (const char c : vocabulary_.bytes(id)) {
            state_.step(at, static_cast<unsigned char>(c), next);
            if (next.empty()) return;
            at.swap(next);
        }
        allow(std::span(&id, 1), at);
    }

    void fill_name_slowly(const Reading& name) {
        std::vector<Readings> path(1);
        path[0] = {name};
        for (std::uint32_t i = 1; i < trie_.nodes[0].end;) {
            const TokenTrie::Node& node = trie_.nodes[i];
            if (path.size() <= node.depth) path.resize(node.depth + 1u);
            state_.step(path[node.depth - 1u], node.byte, path[node.depth]);
            if (path[node.depth].empty()) {
                i = node.end;
                continue;
            }
            allow(trie_.tokens_of(i), path[node.depth]);
            ++i;
        }
    }

    // Tokens that leave the text: at each node that may follow it, what is behind it goes on.
    void fill_exits(const Reading& reading, const MaskCache::Walk& kept) {
        const GrammarNode& node = *reading.node;
        const bool is_name = reading.leaf == Leaf::name;
        const bool counts = is_name || node.min > reading.code_points ||
                            (node.max != unbounded &&
                             node.max - reading.code_points < vocabulary_.code_points_max());
        Readings resumed, expanded, next;
        for (unsigned byte = 0; byte < 256; ++byte) {
            if (kept.begin[byte] == kept.begin[byte + 1]) continue;
            if (is_name) {
                fill_name_exits(reading, kept, static_cast<unsigned char>(byte));
                continue;
            }
            if (expanded.empty()) {
                state_.resume(reading, resumed);
                state_.expand(resumed, expanded);
            }
            state_.step(expanded, static_cast<unsigned char>(byte), next);
            if (next.empty()) continue;
            Behind behind(state_, next);
            for (std::uint32_t i = kept.begin[byte]; i < kept.begin[byte + 1]; ++i)
                if (!counts || may_leave(reading, kept.exits[i])) leave(behind, kept.exits[i]);
        }
    }

    // What stands behind a text and one byte more, the same at many nodes.
    struct Behind {
        Behind(const GrammarState& state, const Readings& at)
            : readings(at),
              least(state.least(at)) {}
        const Readings& readings;
        std::uint32_t least;
    };

    void leave(const Behind& behind, std::uint32_t exit) {
        const std::span<const TokenId> tokens = trie_.tokens_of(exit);
        if (!tokens.empty() && behind.least > budget_) result_.by_budget = true;
        if (behind.least <= budget_)
            for (const TokenId id : tokens) set_bit(bits_, id);
        walk(behind.readings, exit + 1, trie_.nodes[exit].end);
    }

    // The text in front of an exit, by itself.
    std::string_view text_before(std::uint32_t exit) const {
        const TokenId any = trie_.tokens[trie_.nodes[exit].first_token];
        return vocabulary_.bytes(any).substr(0, trie_.nodes[exit].depth - 1u);
    }

    // By its length the text may end in front of the exit.
    bool may_leave(const Reading& reading, std::uint32_t exit) {
        const TokenTrie::Node& node = trie_.nodes[exit];
        const bool begins = (node.byte & 0xc0) != 0x80;
        if (!node.has_backslash && node.code_points < 255 && reading.text.escape == 0) {
            const std::uint64_t length = std::uint64_t{reading.code_points} + node.code_points -
                                         begins;
            return length >= reading.node->min && length <= reading.node->max;
        }
        Readings at{reading}, next;
        for (const char c : text_before(exit)) {
            state_.step(at, static_cast<unsigned char>(c), next);
            if (next.empty()) return false;
            at.swap(next);
        }
        return state_.may_end(at.front());
    }

    // A name must not be a taken one, and it is remembered: so each is followed by itself where it
    // may be taken, and all others together.
    void fill_name_exits(const Reading& reading, const MaskCache::Walk& kept, unsigned char byte) {
        Readings resumed, expanded, next;
        state_.resume(reading, resumed);
        state_.expand(resumed, expanded);
        state_.step(expanded, byte, next);
        if (next.empty()) return;
        const Behind behind(state_, next);
        for (std::uint32_t i = kept.begin[byte]; i < kept.begin[byte + 1]; ++i) {
            const std::uint32_t exit = kept.exits[i];
            if (!is_free(reading, exit)) continue;
            if (may_reach_next_name(exit))
                leave_as_itself(reading, exit, byte);
            else
                leave(behind, exit);
        }
    }

    // A token that goes on so far may come to the next name, where it matters what this one was.
    bool may_reach_next_name(std::uint32_t exit) const {
        constexpr std::uint32_t shortest = 8;  // ": 1, ""
        const std::uint32_t deep = trie_.nodes[exit].depth + shortest;
        for (std::uint32_t i = exit + 1; i < trie_.nodes[exit].end; ++i)
            if (trie_.nodes[i].depth >= deep) return true;
        return false;
    }

    void leave_as_itself(const Reading& name, std::uint32_t exit, unsigned char byte) {
        Readings at{name}, next, expanded;
        for (const char c : text_before(exit)) {
            state_.step(at, static_cast<unsigned char>(c), next);
            at.swap(next);
        }
        state_.expand(at, expanded);
        state_.step(expanded, byte, next);
        leave(Behind(state_, next), exit);
    }

    bool is_free(const Reading& name, std::uint32_t exit) {
        const auto& taken = *name.frame->taken;
        const std::string_view rest = text_before(exit);
        const bool plain = !trie_.nodes[exit].has_backslash && name.text.escape == 0;
        if (plain)
            return std::none_of(
                taken.begin() + name.first, taken.begin() + name.last,
                [&](const auto& one) { return std::string_view(*one).substr(name.depth) == rest; });
        Readings at{name}, next;
        for (const char c : rest) {
            state_.step(at, static_cast<unsigned char>(c), next);
            if (next.empty()) return false;
            at.swap(next);
        }
        return state_.may_end(at.front());
    }

    // Those that are no text: named ones, any of them where any may stand, and ends.
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
        Readings readings, expanded;
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
