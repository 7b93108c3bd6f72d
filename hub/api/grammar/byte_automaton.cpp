#include "hub/api/grammar/byte_automaton.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <utility>

#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {
namespace {

using State = ByteAutomaton::State;
using ExpressionKind = Expression::Kind;

constexpr std::uint32_t nfa_states_max = 1u << 17;
constexpr std::uint64_t work_max = 40'000'000;

Error too_large(std::string_view what) {
    return {ErrorCode::unsupported, text("a pattern or length that needs ", what, ": simplify it")};
}

// Returns the number of bytes that one byte of a text takes inside a JSON string, where some bytes
// need an escape.
std::uint32_t escaped_bytes(unsigned char byte) {
    if (byte == '"' || byte == '\\' || byte == '\b' || byte == '\f' || byte == '\n' ||
        byte == '\r' || byte == '\t')
        return 2;
    return byte < 0x20 ? 6 : 1;
}

template <class Cost>
std::vector<std::uint32_t> least_to_end(const ByteAutomaton& automaton, const Cost& cost) {
    const std::uint32_t n = automaton.num_states();
    std::vector<std::vector<std::pair<State, std::uint32_t>>> before(n);
    for (State from = 0; from < n; ++from) {
        std::vector<std::uint32_t> cheapest(automaton.num_classes, ByteAutomaton::dead);
        for (unsigned byte = 0; byte < 256; ++byte) {
            std::uint32_t& best = cheapest[automaton.class_of[byte]];
            best = std::min(best, cost(static_cast<unsigned char>(byte)));
        }
        for (std::uint32_t c = 0; c < automaton.num_classes; ++c)
            if (const State to = automaton.next[from * automaton.num_classes + c];
                to != ByteAutomaton::dead && cheapest[c] != ByteAutomaton::dead)
                before[to].emplace_back(from, cheapest[c]);
    }

    std::vector<std::uint32_t> least(n, ByteAutomaton::dead);
    using Entry = std::pair<std::uint32_t, State>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    for (State end = 0; end < n; ++end)
        if (automaton.accepts[end]) open.emplace(least[end] = 0, end);
    while (!open.empty()) {
        const auto [distance, state] = open.top();
        open.pop();
        if (distance > least[state]) continue;
        for (const auto& [from, bytes] : before[state])
            if (distance + bytes < least[from]) open.emplace(least[from] = distance + bytes, from);
    }
    return least;
}

// Merges states from which the same texts lead to an end, if the automaton is small enough for this
// search. Fewer states mean fewer walks through a vocabulary. Source: Moore, "Gedanken-experiments
// on sequential machines", 1956.
ByteAutomaton merged(ByteAutomaton raw) {
    constexpr std::uint32_t states_max = 256;
    const std::uint32_t n = raw.num_states();
    if (n == 0 || n > states_max) return raw;

    std::vector<State> group(raw.accepts.begin(), raw.accepts.end());
    State count = 0;
    for (;;) {
        std::map<std::vector<State>, State> known;
        std::vector<State> next(n);
        for (State state = 0; state < n; ++state) {
            std::vector<State> key{group[state]};
            for (std::uint32_t c = 0; c < raw.num_classes; ++c) {
                const State to = raw.next[state * raw.num_classes + c];
                key.push_back(to == ByteAutomaton::dead ? to : group[to]);
            }
            next[state] =
                known.emplace(std::move(key), static_cast<State>(known.size())).first->second;
        }
        group = std::move(next);
        if (known.size() == count) break;
        count = static_cast<State>(known.size());
    }

    ByteAutomaton out;
    out.class_of = raw.class_of;
    out.num_classes = raw.num_classes;
    out.accepts.resize(count);
    out.next.resize(std::size_t{count} * raw.num_classes);
    for (State state = 0; state < n; ++state) {  // group 0 of the merged states has the start state
        out.accepts[group[state]] = raw.accepts[state];
        for (std::uint32_t c = 0; c < raw.num_classes; ++c) {
            const State to = raw.next[state * raw.num_classes + c];
            out.next[group[state] * raw.num_classes + c] = to == ByteAutomaton::dead ? to
                                                                                     : group[to];
        }
    }
    return out;
}

// Removes states from which no accepting state is reachable, and computes each state's distance in
// bytes to an accepting state.
SharedAutomaton finished(ByteAutomaton all) {
    static std::atomic<std::uint64_t> serials{0};
    const ByteAutomaton raw = merged(std::move(all));
    const std::vector<std::uint32_t> far = least_to_end(raw, [](unsigned char) { return 1u; });

    std::vector<State> renamed(raw.num_states(), ByteAutomaton::dead);
    State count = 0;
    if (raw.num_states() > 0 && far[0] != ByteAutomaton::dead)
        for (State state = 0; state < raw.num_states(); ++state)
            if (far[state] != ByteAutomaton::dead) renamed[state] = count++;

    auto out = std::make_shared<ByteAutomaton>();
    out->class_of = raw.class_of;
    out->num_classes = raw.num_classes;
    for (State state = 0; state < raw.num_states(); ++state) {
        if (renamed[state] == ByteAutomaton::dead) continue;
        out->accepts.push_back(raw.accepts[state]);
        for (std::uint32_t c = 0; c < raw.num_classes; ++c) {
            const State to = raw.next[state * raw.num_classes + c];
            out->next.push_back(to == ByteAutomaton::dead ? to : renamed[to]);
        }
    }
    out->least = least_to_end(*out, [](unsigned char) { return 1u; });
    out->least_escaped = least_to_end(*out, escaped_bytes);
    out->serial = ++serials;
    return out;
}

// Thompson's nondeterministic automaton: edges of byte ranges, empty edges, and empty edges that
// may be passed only at the begin or the end of the text.
class Nfa {
  public:
    struct Edge {
        unsigned char first, last;
        State to;
    };
    struct Node {
        std::vector<Edge> edges;
        std::vector<State> empty, at_begin, at_end;
    };
    std::vector<Node> nodes;
    bool overflow = false;

    State add() {
        if (nodes.size() >= nfa_states_max) overflow = true;
        if (!overflow) nodes.emplace_back();
        return static_cast<State>(nodes.size() - 1);
    }

    State emit(const Expression& e, State from) {
        if (overflow) return from;
        switch (e.kind) {
            case ExpressionKind::characters: {
                const State to = add();
                for (const CodePoints& range : e.ranges) emit_range(range, from, to);
                return to;
            }
            case ExpressionKind::sequence:
                for (const Expression& part : e.parts) from = emit(part, from);
                return from;
            case ExpressionKind::choice: {
                const State to = add();
                for (const Expression& part : e.parts) {
                    const State begin = add();
                    nodes[from].empty.push_back(begin);
                    nodes[emit(part, begin)].empty.push_back(to);
                }
                return to;
            }
            case ExpressionKind::repeat: return emit_repeat(e, from);
            case ExpressionKind::text_begin: {
                const State to = add();
                nodes[from].at_begin.push_back(to);
                return to;
            }
            case ExpressionKind::text_end: {
                const State to = add();
                nodes[from].at_end.push_back(to);
                return to;
            }
            case ExpressionKind::rule:
            case ExpressionKind::token: overflow = true; return from;
        }
        return from;
    }

  private:
    State emit_repeat(const Expression& e, State from) {
        const bool loops = e.max == unbounded && e.min > 0;
        for (std::uint32_t i = loops ? 1 : 0; i < e.min && !overflow; ++i)
            from = emit(e.parts[0], from);
        // The last required copy of a repeated part also serves as the loop. With an additional
        // copy for the loop, (x+)+ would contain x four times.
        if (loops) {
            const State begin = add();
            nodes[from].empty.push_back(begin);
            const State end = emit(e.parts[0], begin);
            nodes[end].empty.push_back(begin);
            return end;
        }
        if (e.max == unbounded) {
            const State loop = add(), to = add();
            nodes[from].empty.push_back(loop);
            nodes[loop].empty.push_back(to);
            nodes[emit(e.parts[0], loop)].empty.push_back(loop);
            return to;
        }
        const State to = add();
        for (std::uint32_t i = e.min; i < e.max && !overflow; ++i) {
            nodes[from].empty.push_back(to);
            from = emit(e.parts[0], from);
        }
        nodes[from].empty.push_back(to);
        return to;
    }

    // Adds a range of code points as sequences of byte ranges. The range is split until at each
    // byte position the bytes of both ends are equal, or the position allows its whole range of
    // bytes.
    void emit_range(CodePoints range, State from, State to) {
        if (overflow || range.first > range.last) return;
        for (const char32_t border : {char32_t{0x7f}, char32_t{0x7ff}, char32_t{0xffff}})
            if (range.first <= border && border < range.last) {
                emit_range({range.first, border}, from, to);
                return emit_range({border + 1, range.last}, from, to);
            }

        std::string first, last;
        utf8_append(first, range.first);
        utf8_append(last, range.last);
        for (std::size_t i = 1; i < first.size(); ++i) {
            const char32_t mask = (char32_t{1} << (6 * i)) - 1;
            if ((range.first & ~mask) == (range.last & ~mask)) continue;
            if ((range.first & mask) != 0) {
                emit_range({range.first, range.first | mask}, from, to);
                return emit_range({(range.first | mask) + 1, range.last}, from, to);
            }
            if ((range.last & mask) != mask) {
                emit_range({range.first, (range.last & ~mask) - 1}, from, to);
                return emit_range({range.last & ~mask, range.last}, from, to);
            }
        }

        for (std::size_t i = 0; i < first.size(); ++i) {
            const State next = i + 1 == first.size() ? to : add();
            nodes[from].edges.push_back(
                {static_cast<unsigned char>(first[i]), static_cast<unsigned char>(last[i]), next});
            from = next;
        }
    }
};

class SubsetConstruction {
  public:
    SubsetConstruction(const Nfa& nfa, State end) : nfa_(nfa), end_(end), mark_(nfa.nodes.size()) {}

    Result<SharedAutomaton> run() {
        classify();
        intern(true, closure({0}, true, false));
        for (State state = 0; state < sets_.size(); ++state) {
            for (std::uint32_t c = 0; c < raw_.num_classes; ++c)
                raw_.next.push_back(target(state, c));
            if (sets_.size() > automaton_states_max)
                return too_large(text("more than ", automaton_states_max, " states"));
            if (work_ > work_max) return too_large("too much work");
        }
        return finished(std::move(raw_));
    }

  private:
    using Set = std::vector<State>;

    // Puts bytes that have the same transitions on every edge into one byte class.
    void classify() {
        std::array<bool, 257> border{};
        for (const Nfa::Node& node : nfa_.nodes)
            for (const Nfa::Edge& edge : node.edges)
                border[edge.first] = border[edge.last + 1] = true;
        std::uint8_t current = 0;
        for (unsigned byte = 0; byte < 256; ++byte) {
            if (byte > 0 && border[byte]) ++current;
            raw_.class_of[byte] = current;
            if (byte == 0 || border[byte]) sample_.push_back(static_cast<unsigned char>(byte));
        }
        raw_.num_classes = static_cast<std::uint32_t>(sample_.size());
    }

    Set closure(Set set, bool at_begin, bool at_end) {
        ++round_;
        for (const State state : set) mark_[state] = round_;
        const auto visit = [&](const std::vector<State>& targets) {
            for (const State to : targets)
                if (mark_[to] != round_) {
                    mark_[to] = round_;
                    set.push_back(to);
                }
        };
        for (std::size_t i = 0; i < set.size(); ++i) {
            const Nfa::Node& node = nfa_.nodes[set[i]];
            visit(node.empty);
            if (at_begin) visit(node.at_begin);
            if (at_end) visit(node.at_end);
        }
        work_ += set.size();
        std::sort(set.begin(), set.end());
        return set;
    }

    // Returns the deterministic state that represents a set of nodes. Edges for the begin of the
    // text may be passed only at the begin, so the start is a separate state.
    State intern(bool at_begin, Set set) {
        const auto [found, is_new] = known_.emplace(std::pair(at_begin, std::move(set)),
                                                    static_cast<State>(sets_.size()));
        if (!is_new) return found->second;
        sets_.push_back(&found->first.second);
        const Set ended = closure(found->first.second, at_begin, true);
        raw_.accepts.push_back(std::binary_search(ended.begin(), ended.end(), end_));
        return found->second;
    }

    State target(State state, std::uint32_t byte_class) {
        const unsigned char byte = sample_[byte_class];
        Set moved;
        ++round_;
        for (const State from : *sets_[state])
            for (const Nfa::Edge& edge : nfa_.nodes[from].edges)
                if (edge.first <= byte && byte <= edge.last && mark_[edge.to] != round_) {
                    mark_[edge.to] = round_;
                    moved.push_back(edge.to);
                }
        work_ += sets_[state]->size();
        if (moved.empty()) return ByteAutomaton::dead;
        return intern(false, closure(std::move(moved), false, false));
    }

    const Nfa& nfa_;
    State end_;
    ByteAutomaton raw_;
    std::vector<unsigned char> sample_;  // one sample byte of each byte class
    std::vector<std::uint32_t> mark_;
    std::uint32_t round_ = 0;
    std::uint64_t work_ = 0;
    std::map<std::pair<bool, Set>, State> known_;
    std::vector<const Set*> sets_;
};

// Builds an automaton whose states are pairs. `step(pair, byte)` returns the next pair, or nullopt
// if there is none, and has the same result for all bytes with the same `kind(byte)`.
template <class Pair, class KindOf, class Step, class Accepts>
Result<SharedAutomaton> explore(Pair start, const KindOf& kind, const Step& step,
                                const Accepts& accepts) {
    ByteAutomaton raw;
    std::map<std::array<unsigned, 3>, std::uint8_t> kinds;
    std::vector<unsigned char> samples;
    for (unsigned byte = 0; byte < 256; ++byte) {
        const auto [found, is_new] = kinds.emplace(kind(static_cast<unsigned char>(byte)),
                                                   static_cast<std::uint8_t>(samples.size()));
        raw.class_of[byte] = found->second;
        if (is_new) samples.push_back(static_cast<unsigned char>(byte));
    }
    raw.num_classes = static_cast<std::uint32_t>(samples.size());

    std::map<Pair, State> known{{start, 0}};
    std::vector<Pair> pairs{start};
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const Pair pair = pairs[i];
        raw.accepts.push_back(accepts(pair));
        for (const unsigned char byte : samples) {
            const std::optional<Pair> to = step(pair, byte);
            if (!to) {
                raw.next.push_back(ByteAutomaton::dead);
                continue;
            }
            const auto [found, is_new] = known.emplace(*to, static_cast<State>(pairs.size()));
            if (is_new) pairs.push_back(*to);
            raw.next.push_back(found->second);
        }
        if (pairs.size() > automaton_states_max)
            return too_large(text("more than ", automaton_states_max, " states"));
    }
    return finished(std::move(raw));
}

Expression any_characters() {
    return Expression::repeat(Expression::characters({{0, code_point_max}}), 0, unbounded);
}

// The table of Knuth, Morris and Pratt as an automaton: state i means that the text ends in the
// first i bytes of `marker`.
ByteAutomaton marker_automaton(std::string_view marker, bool until) {
    ByteAutomaton raw;
    for (unsigned byte = 0; byte < 256; ++byte)
        raw.class_of[byte] = static_cast<std::uint8_t>(byte);
    raw.num_classes = 256;

    const std::size_t found = marker.size();
    for (std::size_t matched = 0; matched <= found; ++matched) {
        raw.accepts.push_back(until ? matched == found && found > 0
                                    : matched < found || found == 0);
        for (unsigned byte = 0; byte < 256; ++byte) {
            if (matched == found && found > 0) {
                raw.next.push_back(ByteAutomaton::dead);
                continue;
            }
            std::string seen(marker.substr(0, matched));
            seen += static_cast<char>(byte);
            std::size_t kept = std::min(seen.size(), found);
            while (kept > 0 && !seen.ends_with(marker.substr(0, kept))) --kept;
            const bool ends = kept == found && found > 0 && !until;
            raw.next.push_back(ends ? ByteAutomaton::dead : static_cast<State>(kept));
        }
    }
    return raw;
}

}  // namespace

Result<SharedAutomaton> automaton_of(const Expression& expression) {
    Nfa nfa;
    const State begin = nfa.add();
    const State end = nfa.emit(expression, begin);
    if (nfa.overflow) return too_large("too many states");
    return SubsetConstruction(nfa, end).run();
}

Result<SharedAutomaton> automaton_of_search(const Expression& pattern) {
    std::vector<Expression> parts;
    parts.push_back(any_characters());
    parts.push_back(pattern);
    parts.push_back(any_characters());
    return automaton_of(Expression::of(ExpressionKind::sequence, std::move(parts)));
}

SharedAutomaton any_text() {
    static const SharedAutomaton texts = automaton_of(any_characters()).value();
    return texts;
}

SharedAutomaton text_until(std::string_view marker) {
    return finished(marker_automaton(marker, true));
}
SharedAutomaton text_without(std::string_view marker) {
    return finished(marker_automaton(marker, false));
}

Result<SharedAutomaton> intersection(const ByteAutomaton& a, const ByteAutomaton& b) {
    using Pair = std::pair<State, State>;
    if (a.num_states() == 0 || b.num_states() == 0) return finished(ByteAutomaton{});
    return explore(
        Pair{0, 0},
        [&](unsigned char byte) {
            return std::array<unsigned, 3>{a.class_of[byte], b.class_of[byte], 0};
        },
        [&](const Pair& at, unsigned char byte) -> std::optional<Pair> {
            const Pair to{a.step(at.first, byte), b.step(at.second, byte)};
            if (to.first == ByteAutomaton::dead || to.second == ByteAutomaton::dead)
                return std::nullopt;
            return to;
        },
        [&](const Pair& at) { return a.accepts[at.first] && b.accepts[at.second]; });
}

Result<SharedAutomaton> difference(const ByteAutomaton& a, const ByteAutomaton& b) {
    using Pair = std::pair<State, State>;  // the second state is dead where `b` accepts no more
    if (a.num_states() == 0) return finished(ByteAutomaton{});
    const bool is_empty = b.num_states() == 0;
    return explore(
        Pair{0, is_empty ? ByteAutomaton::dead : 0},
        [&](unsigned char byte) {
            return std::array<unsigned, 3>{a.class_of[byte], is_empty ? 0u : b.class_of[byte], 0};
        },
        [&](const Pair& at, unsigned char byte) -> std::optional<Pair> {
            const State to = a.step(at.first, byte);
            if (to == ByteAutomaton::dead) return std::nullopt;
            return Pair{to, at.second == ByteAutomaton::dead ? at.second : b.step(at.second, byte)};
        },
        [&](const Pair& at) {
            return a.accepts[at.first] &&
                   (at.second == ByteAutomaton::dead || !b.accepts[at.second]);
        });
}

Result<SharedAutomaton> with_length(const ByteAutomaton& texts, std::uint32_t min,
                                    std::uint32_t max) {
    using Pair = std::pair<State, std::uint32_t>;
    if (texts.num_states() == 0) return finished(ByteAutomaton{});
    return explore(
        Pair{0, 0},
        [&](unsigned char byte) {
            return std::array<unsigned, 3>{texts.class_of[byte], (byte & 0xc0) == 0x80, 0};
        },
        [&](const Pair& at, unsigned char byte) -> std::optional<Pair> {
            const State to = texts.step(at.first, byte);
            if (to == ByteAutomaton::dead) return std::nullopt;
            // The byte continues a code point.
            if ((byte & 0xc0) == 0x80) return Pair{to, at.second};
            if (at.second >= max) return std::nullopt;
            return Pair{to, max == unbounded ? std::min(at.second + 1, min) : at.second + 1};
        },
        [&](const Pair& at) { return texts.accepts[at.first] && at.second >= min; });
}

bool holds(const ByteAutomaton& automaton, std::string_view text) {
    if (automaton.num_states() == 0) return false;
    State state = 0;
    for (const char c : text) {
        state = automaton.step(state, static_cast<unsigned char>(c));
        if (state == ByteAutomaton::dead) return false;
    }
    return automaton.accepts[state];
}

}  // namespace moex
