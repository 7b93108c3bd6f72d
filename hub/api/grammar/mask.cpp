#include "hub/api/grammar/mask.h"

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <tuple>

namespace moex {

using Leaf = Reading::Leaf;
using Readings = GrammarState::Readings;

// ---- Walks that are kept.

struct MaskCache::State {
    using Key = std::tuple<std::uint64_t, bool, ByteAutomaton::State, std::uint32_t>;
    struct Entry {
        Key key;
        SharedAutomaton texts;
        std::shared_ptr<const Walk> walk;
    };
    std::uint64_t bytes_max = 0;
    std::mutex mutex;          // of what follows
    std::list<Entry> entries;  // the one used last first
    std::map<Key, std::list<Entry>::iterator> by_key;
    std::uint64_t bytes = 0, made = 0;
};

std::uint64_t MaskCache::Walk::num_bytes() const {
    return sizeof(Walk) + 8 * inside.size() + 4 * exits.size() + 256;
}

MaskCache::MaskCache(std::uint64_t bytes_max) : state_(std::make_unique<State>()) {
    state_->bytes_max = bytes_max;
}
MaskCache::~MaskCache() = default;

std::uint64_t MaskCache::num_bytes() const {
    const std::lock_guard lock(state_->mutex);
    return state_->bytes;
}
std::uint64_t MaskCache::num_walks() const {
    const std::lock_guard lock(state_->mutex);
    return state_->made;
}

namespace {

// Inside a JSON string nothing but its closing quote leaves it.
MaskCache::Walk make_walk(const Vocabulary& vocabulary, const ByteAutomaton& texts, bool escaped,
                          TextState at) {
    const TokenTrie& trie = vocabulary.trie();
    MaskCache::Walk walk;
    walk.inside.assign(vocabulary.num_words(), 0);
    std::vector<std::pair<unsigned char, std::uint32_t>> exits;
    std::vector<TextState> path{at};

    for (std::uint32_t i = 1; i < trie.nodes[0].end;) {
        const TokenTrie::Node& node = trie.nodes[i];
        const TextState before = path[node.depth - 1u];
        if ((!escaped || node.byte == '"') && may_end_text(texts, before))
            exits.emplace_back(node.byte, i);
        const auto next = step_text(texts, escaped, before, node.byte);
        if (!next) {
            i = node.end;
            continue;
        }
        path.resize(node.depth);
        path.push_back(*next);
        const std::span<const TokenId> tokens = trie.tokens_of(i);
        for (const TokenId id : tokens) set_bit(walk.inside, id);
        if (!tokens.empty())
            walk.least_max = std::max(walk.least_max, least_text(texts, escaped, *next));
        ++i;
    }

    std::stable_sort(exits.begin(), exits.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [byte, node] : exits) {
        ++walk.begin[byte + 1];
        walk.exits.push_back(node);
    }
    for (unsigned byte = 0; byte < 256; ++byte) walk.begin[byte + 1] += walk.begin[byte];
    return walk;
}

}  // namespace

std::shared_ptr<const MaskCache::Walk> MaskCache::walk(const Vocabulary& vocabulary,
                                                       const SharedAutomaton& texts, bool escaped,
                                                       TextState at) {
    const State::Key key{texts->serial, escaped, at.state, at.escape};
    {
        const std::lock_guard lock(state_->mutex);
        if (const auto found = state_->by_key.find(key); found != state_->by_key.end()) {
            state_->entries.splice(state_->entries.begin(), state_->entries, found->second);
            return found->second->walk;
        }
    }

    auto made = std::make_shared<const Walk>(make_walk(vocabulary, *texts, escaped, at));
    const std::lock_guard lock(state_->mutex);
    ++state_->made;
    if (state_->by_key.contains(key)) return made;
    state_->entries.push_front({key, texts, made});
    state_->by_key[key] = state_->entries.begin();
    state_->bytes += made->num_bytes();
    while (state_->bytes > state_->bytes_max && state_->entries.size() > 1) {
        state_->bytes -= state_->entries.back().walk->num_bytes();
        state_->by_key.erase(state_->entries.back().key);
        state_->entries.pop_back();
    }
    return made;
}

// ---- Masks.
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
        if (tokens.empty()) return;
        if (state_.least(readings) > budget_) {
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

        const std::uint32_t missing = is_name ? longest_name_detour(reading)
                                              : node.min - std::min(node.min, reading.code_points);
        const std::uint32_t worst = add_least(add_least(kept->least_max, missing),
                                              state_.least_behind(reading));
        const std::uint32_t room = is_name || node.max == unbounded
                                       ? unbounded
                                       : node.max - reading.code_points;
        const bool counts_raw = room == unbounded || reading.text.escape == 0;
        if (worst > budget_ || !counts_raw)
            fill_inside_slowly(reading);
        else
            fill_inside(reading, *kept, room);
        fill_exits(reading, *kept);
    }

    static const SharedAutomaton& any_name() {
        static const SharedAutomaton texts = any_text();
        return texts;
    }

    static std::uint32_t longest_name_detour(const Reading& name) {
        std::uint32_t bytes = 1;
        for (std::uint64_t names = 93; names <= name.frame->taken->size(); names *= 93) ++bytes;
        return bytes;
    }

    // Where nothing but the length counts.
    void fill_inside(const Reading& reading, const MaskCache::Walk& kept, std::uint32_t room) {
        if (room >= vocabulary_.code_points_max()) {
            for (std::size_t i = 0; i < bits_.size(); ++i) bits_[i] |= kept.inside[i];
            return;
        }
        // Inside a character the first bytes belong to one that was counted.
        const std::span<const std::uint64_t> fits = vocabulary_.at_most(room);
        for (std::size_t i = 0; i < bits_.size(); ++i) bits_[i] |= kept.inside[i] & fits[i];
        const Readings alone{reading};
        for (const TokenId id : vocabulary_.with_backslash())
            if (has_bit(kept.inside, id) && !has_bit(bits_, id) && stays(alone, id))
                set_bit(bits_, id);
    }

    // Whether the token's bytes all go into this one reading.
    bool stays(const Readings& alone, TokenId id) {
        Readings at = alone, next;
        for (const char c : vocabulary_.bytes(id)) {
            state_.step(at, static_cast<unsigned char>(c), next);
            if (next.empty()) return false;
            at.swap(next);
        }
        return true;
    }

    // Near the end of the budget: each place by its own distance. What leaves the text is not
    // meant.
    void fill_inside_slowly(const Reading& reading) {
        std::vector<Readings> path(1);
        path[0] = {reading};
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
