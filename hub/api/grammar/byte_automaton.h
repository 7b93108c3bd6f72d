// A deterministic automaton over bytes: which texts a pattern holds. Every state leads to an end.
// Built from expressions by way of a nondeterministic one, within a bound on states and work.
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

    std::array<std::uint8_t, 256> class_of{};  // of each byte: bytes of a class go the same way
    std::uint32_t num_classes = 1;
    std::vector<State> next;            // [num_states, num_classes]
    std::vector<std::uint8_t> accepts;  // [num_states]
    // The fewest bytes to an end: as they are, and as the inside of a JSON string.
    std::vector<std::uint32_t> least, least_escaped;
    std::uint64_t serial = 0;  // of this automaton, among all of the process

    // 0 is the start; an automaton without states holds no text.
    std::uint32_t num_states() const { return static_cast<std::uint32_t>(accepts.size()); }
    State step(State state, unsigned char byte) const {
        return next[std::size_t{state} * num_classes + class_of[byte]];
    }
    std::uint64_t num_bytes() const { return next.size() * sizeof(State) + accepts.size() * 9; }
};
using SharedAutomaton = std::shared_ptr<const ByteAutomaton>;

inline constexpr std::uint32_t automaton_states_max = 1u << 14;

// All texts of an expression without rules and tokens; `text_begin` and `text_end` hold only at its
// borders. unsupported: it needs more states than the bound.
Result<SharedAutomaton> automaton_of(const Expression& expression);
// Texts in which the pattern is found, as JSON schema's `pattern` reads them.
Result<SharedAutomaton> automaton_of_search(const Expression& pattern);
// Texts in UTF-8.
SharedAutomaton any_text();
// Bytes up to the first `marker`, which is their end; without a marker, no end.
SharedAutomaton text_until(std::string_view marker);
// Bytes that do not hold `marker`; they may end anywhere.
SharedAutomaton text_without(std::string_view marker);

Result<SharedAutomaton> intersection(const ByteAutomaton& a, const ByteAutomaton& b);
// Texts of `min` to `max` code points.
Result<SharedAutomaton> with_length(const ByteAutomaton& texts, std::uint32_t min,
                                    std::uint32_t max);
bool holds(const ByteAutomaton& automaton, std::string_view text);

}  // namespace moex
