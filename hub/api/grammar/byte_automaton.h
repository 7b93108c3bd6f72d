// A deterministic automaton over bytes that accepts the texts of a pattern. Every state leads to an
// end. It is built from an expression by way of a nondeterministic automaton, within a bound on
// states and work.
// Source: Thompson, "Regular expression search algorithm", CACM 11(6), 1968; the subset
// construction.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "hub/api/grammar/expression.h"
#include "protocol/result.h"

namespace moex {

struct ByteAutomaton {
    using State = std::uint32_t;
    static constexpr State dead = 0xffff'ffff;

    // The class of each byte; all bytes of one class have the same transitions.
    std::array<std::uint8_t, 256> class_of{};
    std::uint32_t num_classes = 1;
    std::vector<State> next;            // [num_states, num_classes]
    std::vector<std::uint8_t> accepts;  // [num_states]
    // [num_states], the fewest bytes from a state to an accepting state: in a plain text, and in a
    // JSON string, where some bytes need an escape.
    std::vector<std::uint32_t> least, least_escaped;
    std::uint64_t serial = 0;  // unique number of the automaton within the process; a cache key

    // Returns true if no text is accepted. State 0 is the start; an automaton without states
    // accepts no text.
    std::uint32_t num_states() const { return static_cast<std::uint32_t>(accepts.size()); }
    State step(State state, unsigned char byte) const {
        return next[std::size_t{state} * num_classes + class_of[byte]];
    }
    std::uint64_t num_bytes() const { return next.size() * sizeof(State) + accepts.size() * 9; }
};
using SharedAutomaton = std::shared_ptr<const ByteAutomaton>;

inline constexpr std::uint32_t automaton_states_max = 1u << 14;

// Accepts all texts of an expression that has neither rules nor tokens. `text_begin` and `text_end`
// match only at the borders of the text. Error `unsupported`: the automaton needs more states than
// the bound allows.
Result<SharedAutomaton> automaton_of(const Expression& expression);
// Accepts texts in which the pattern is found anywhere, as the keyword `pattern` of JSON Schema
// does.
Result<SharedAutomaton> automaton_of_search(const Expression& pattern);
// Accepts all texts in valid UTF-8.
SharedAutomaton any_text();
// Accepts texts that end right after their first `marker`. With an empty marker a text never ends.
SharedAutomaton text_until(std::string_view marker);
// Accepts texts that do not contain `marker`; such a text may end anywhere.
SharedAutomaton text_without(std::string_view marker);

Result<SharedAutomaton> intersection(const ByteAutomaton& a, const ByteAutomaton& b);
// Accepts the texts that `a` accepts and `b` does not.
Result<SharedAutomaton> difference(const ByteAutomaton& a, const ByteAutomaton& b);
// Accepts the texts that `texts` accepts and that have `min` to `max` code points.
Result<SharedAutomaton> with_length(const ByteAutomaton& texts, std::uint32_t min,
                                    std::uint32_t max);
bool holds(const ByteAutomaton& automaton, std::string_view text);

}  // namespace moex
