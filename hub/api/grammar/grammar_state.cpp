#include "hub/api/grammar/grammar_state.h"

#include <algorithm>

#include "hub/api/grammar/grammar_walker.h"
#include "hub/api/grammar/parse_ends.h"

namespace moex {
namespace {

using Leaf = Parse::Leaf;

}  // namespace

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
    GrammarWalker(*grammar_, parses_).enter(grammar_->root(), {});
}

bool GrammarState::may_end(const Parse& parse) const {
    switch (parse.leaf) {
        case Leaf::end:
        case Leaf::token: return false;
        case Leaf::words: {
            const Words::Word& word = parse.words->words[parse.first];
            return word.text.size() == parse.depth && ParseEnds(*grammar_).in_reach(parse, word);
        }
        case Leaf::text:
            return parse.code_points >= parse.node->min &&
                   may_end_text(*parse.node->texts, parse.text);
        case Leaf::name: return least_to_free_name(parse) == 0;
        case Leaf::number: return may_end_number(parse.node->number, parse.number);
    }
    return false;
}

void GrammarState::resume(const Parse& parse, Parses& out) const {
    const std::uint32_t result = parse.leaf == Leaf::words ? parse.words->words[parse.first].id : 0;
    GrammarWalker(*grammar_, out).leave(parse.frame, result, parse.name.get());
}

std::uint32_t GrammarState::least_behind(const Parse& parse) const {
    return parse.frame ? ParseEnds(*grammar_).behind(*parse.frame, 0) : 0;
}

std::uint32_t GrammarState::least(const Parse& parse) const {
    std::uint32_t here = 0;
    switch (parse.leaf) {
        case Leaf::end: return 0;
        case Leaf::token: here = 1; break;
        case Leaf::words: {
            const ParseEnds ends(*grammar_);
            std::uint32_t best = endless;
            for (std::uint32_t i = parse.first; i < parse.last; ++i) {
                const Words::Word& word = parse.words->words[i];
                if (!ends.in_reach(parse, word)) continue;
                const auto left = static_cast<std::uint32_t>(word.text.size() - parse.depth);
                best = std::min(
                    best, add_least(left, parse.frame ? ends.behind(*parse.frame, word.id) : 0));
            }
            return best;
        }
        case Leaf::text: here = least_in_text(*parse.node, parse.text, parse.code_points); break;
        case Leaf::name: here = least_to_free_name(parse); break;
        case Leaf::number: here = least_number(parse.node->number, parse.number); break;
    }
    return add_least(here, least_behind(parse));
}

std::uint32_t GrammarState::least(const Parses& parses) const {
    std::uint32_t best = endless;
    for (const Parse& parse : parses) best = std::min(best, least(parse));
    return best;
}
std::uint32_t GrammarState::least() const { return least(parses_); }

void GrammarState::expand(const Parses& parses, Parses& out) const {
    out = parses;
    for (std::size_t i = 0; i < out.size() && out.size() < 16 * parses_max; ++i) {
        if (!may_end(out[i])) continue;
        const Parse ended = out[i];  // a copy, since resume() adds elements to `out`
        resume(ended, out);
    }
}

// Returns the only byte that may be next, if only words may be next and agree on it.
std::optional<char> GrammarState::only_byte(const Parses& expanded) const {
    const ParseEnds ends(*grammar_);
    std::optional<char> only;
    for (const Parse& parse : expanded) {
        if (parse.leaf != Leaf::words) return std::nullopt;
        for (std::uint32_t i = parse.first; i < parse.last; ++i) {
            const Words::Word& word = parse.words->words[i];
            if (word.text.size() == parse.depth || !ends.in_reach(parse, word)) continue;
            if (only && *only != word.text[parse.depth]) return std::nullopt;
            only = word.text[parse.depth];
        }
    }
    return only;
}

std::string GrammarState::forced(std::size_t bytes_max) const {
    std::string bytes;
    Parses at = parses_, expanded;
    while (bytes.size() < bytes_max) {
        expand(at, expanded);
        const std::optional<char> only = only_byte(expanded);
        if (!only) break;
        bytes += *only;
        step(expanded, static_cast<unsigned char>(*only), at);
    }
    return bytes;
}

namespace {

bool step_words(Parse& parse, unsigned char byte) {
    const auto& words = parse.words->words;
    const auto byte_at = [&](std::uint32_t i) -> int {
        return parse.depth < words[i].text.size()
                   ? static_cast<unsigned char>(words[i].text[parse.depth])
                   : -1;
    };
    std::uint32_t low = parse.first, high = parse.last;
    while (low < high) {
        const std::uint32_t middle = (low + high) / 2;
        if (byte_at(middle) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    parse.first = low;
    while (high < parse.last && byte_at(high) == byte) ++high;
    parse.last = high;
    ++parse.depth;
    return parse.first < parse.last;
}

// Narrows [first, last) to the taken names that continue with `byte`, and appends `byte` to the
// name that is being written.
void narrow_taken(Parse& parse, char byte) {
    const auto& taken = *parse.frame->taken;
    const auto fits = [&](std::uint32_t i) {
        return parse.depth < taken[i]->size() && (*taken[i])[parse.depth] == byte;
    };
    while (parse.first < parse.last && !fits(parse.first)) ++parse.first;
    std::uint32_t last = parse.first;
    while (last < parse.last && fits(last)) ++last;
    parse.last = last;
    ++parse.depth;
    parse.name = std::make_shared<const NameText>(parse.name, parse.depth, byte);
}

bool step_name(Parse& parse, unsigned char byte) {
    const ByteAutomaton& texts = names_of(*parse.node);
    const TextState before = parse.text;
    const auto next = step_text(texts, true, before, byte);
    if (!next) return false;
    parse.text = *next;
    if (before.escape == 0 && byte != '\\') {
        narrow_taken(parse, static_cast<char>(byte));
        return true;
    }
    for (const char c : decoded_by(before, byte)) narrow_taken(parse, c);
    return true;
}

}  // namespace

void GrammarState::step(const Parses& expanded, unsigned char byte, Parses& out) const {
    out.clear();
    const ParseEnds ends(*grammar_);
    for (const Parse& before : expanded) {
        if (before.leaf == Leaf::end || before.leaf == Leaf::token) continue;
        Parse parse = before;
        bool alive = false;
        switch (parse.leaf) {
            case Leaf::words: {
                alive = step_words(parse, byte);
                bool reaches = false;
                for (std::uint32_t i = parse.first; alive && !reaches && i < parse.last; ++i)
                    reaches = ends.in_reach(parse, parse.words->words[i]);
                alive = alive && reaches;
                break;
            }
            case Leaf::text:
                alive = step_in_text(*parse.node, parse.text, parse.code_points, byte);
                break;
            case Leaf::name: alive = step_name(parse, byte); break;
            case Leaf::number:
                if (const auto next = step_number(parse.node->number, parse.number, byte)) {
                    parse.number = *next;
                    alive = true;
                }
                break;
            default: break;
        }
        if (!alive) continue;
        const bool is_known = std::any_of(out.begin(), out.end(),
                                          [&](const Parse& known) { return known.same_as(parse); });
        if (!is_known) out.push_back(std::move(parse));
    }
}

bool GrammarState::adopt(Parses next) {
    if (next.empty()) return false;
    if (next.size() > parses_max) {
        std::vector<std::pair<std::uint32_t, std::size_t>> order;
        for (std::size_t i = 0; i < next.size(); ++i) order.emplace_back(least(next[i]), i);
        std::sort(order.begin(), order.end());
        Parses kept;
        for (std::size_t i = 0; i < parses_max; ++i) kept.push_back(next[order[i].second]);
        next = std::move(kept);
    }
    parses_ = std::move(next);
    return true;
}

bool GrammarState::take(unsigned char byte) {
    Parses expanded, next;
    expand(parses_, expanded);
    step(expanded, byte, next);
    return adopt(std::move(next));
}

bool GrammarState::take(std::string_view bytes) {
    const Parses before = parses_;
    for (const char c : bytes)
        if (!take(static_cast<unsigned char>(c))) {
            parses_ = before;
            return false;
        }
    return true;
}

bool GrammarState::take_token(TokenId id) {
    const std::span<const TokenId> named = grammar_->named_tokens();
    const bool is_named = std::binary_search(named.begin(), named.end(), id);
    Parses expanded, next;
    expand(parses_, expanded);
    for (const Parse& parse : expanded) {
        if (parse.leaf == Leaf::token && parse.node->token == id)
            resume(parse, next);
        else if (!is_named && parse.leaf == Leaf::text && parse.node->any_token)
            next.push_back(parse);
    }
    return adopt(std::move(next));
}

}  // namespace moex
