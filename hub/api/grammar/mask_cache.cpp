// The cache of walks through a vocabulary's trie.
#include "hub/api/grammar/mask.h"

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <tuple>

namespace moex {

struct MaskCache::State {
    using Key = std::tuple<std::uint64_t, bool, ByteAutomaton::State, std::uint32_t>;
    struct Entry {
        Key key;
        SharedAutomaton texts;
        std::shared_ptr<const Walk> walk;
    };
    std::uint64_t bytes_max = 0;
    std::mutex mutex;          // guards the following members
    std::list<Entry> entries;  // cached walks, the most recently used first
    std::map<Key, std::list<Entry>::iterator> by_key;
    std::uint64_t bytes = 0, made = 0;
};

std::uint64_t MaskCache::Walk::num_bytes() const {
    return sizeof(Walk) + 8 * (inside.size() + quotes.size() + others.size()) + 4 * exits.size() +
           256;
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

// Stores the distances of tokens that stay inside the text to its end: the most frequent distance
// in `least`, all others with their tokens.
void keep_distances(const std::vector<std::pair<TokenId, std::uint32_t>>& distances,
                    MaskCache::Walk& walk) {
    std::map<std::uint32_t, std::size_t> counts;
    std::pair<const std::uint32_t, std::size_t>* before = nullptr;
    for (const auto& [id, least] : distances) {
        auto& count = before && before->first == least ? *before : *counts.try_emplace(least).first;
        ++count.second;
        before = &count;
    }
    std::size_t most = 0;
    for (const auto& [least, count] : counts) {
        if (count <= most) continue;
        most = count;
        walk.least = least;
    }
    for (const auto& one : distances)
        if (one.second != walk.least) walk.others.push_back(one);
    std::sort(walk.others.begin(), walk.others.end());
}

// Walks the whole vocabulary from the state `at`. A JSON string is left only by its closing quote,
// so its `quotes` are recorded; for other texts `exits` are recorded.
MaskCache::Walk make_walk(const Vocabulary& vocabulary, const ByteAutomaton& texts, bool escaped,
                          TextState at) {
    const TokenTrie& trie = vocabulary.trie();
    MaskCache::Walk walk;
    walk.inside.assign(vocabulary.num_words(), 0);
    const QuoteTails& tails = vocabulary.quote_tails();
    if (escaped) walk.quotes.assign(tails.num_words(), 0);
    std::uint32_t quote = 0;  // index of the next quote that the walk may reach
    std::vector<std::pair<unsigned char, std::uint32_t>> exits;
    std::vector<std::pair<TokenId, std::uint32_t>> distances;
    std::vector<TextState> path{at};

    for (std::uint32_t i = 1; i < trie.nodes[0].end;) {
        const TokenTrie::Node& node = trie.nodes[i];
        const TextState before = path[node.depth - 1u];
        if (escaped && node.byte == '"') {
            while (tails.quotes[quote] < i) ++quote;
            if (may_end_text(texts, before)) set_bit(walk.quotes, quote);
        } else if (!escaped && may_end_text(texts, before)) {
            exits.emplace_back(node.byte, i);
        }
        const auto next = step_text(texts, escaped, before, node.byte);
        if (!next) {
            i = node.end;
            continue;
        }
        path.resize(node.depth);
        path.push_back(*next);
        const std::span<const TokenId> tokens = trie.tokens_of(i);
        const std::uint32_t least = tokens.empty() ? 0 : least_text(texts, escaped, *next);
        for (const TokenId id : tokens) {
            set_bit(walk.inside, id);
            distances.emplace_back(id, least);
        }
        ++i;
    }
    keep_distances(distances, walk);

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

}  // namespace moex
