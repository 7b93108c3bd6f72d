// How JSON spells what a schema means: the inside of a string, and a number, byte by byte.
// A step is refused unless what follows can still end well; each state knows its least bytes to
// an end. Pure.
// Rules that a schema's reader relies on:
//   strings   valid UTF-8; any escape of RFC 8259, surrogates in pairs; a pattern reads the decoded
//             text, and lengths count its code points.
//   numbers   at most 15 digits, which every reader keeps; without bounds an exponent up to 300
//             behind a single digit before the point, so that no reader overflows; with bounds
//             none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "hub/api/grammar/byte_automaton.h"

namespace moex {

// Inside a string, or, not `escaped`, a text as it is.
struct TextState {
    ByteAutomaton::State state = 0;
    std::uint32_t escape = 0;  // how far an escape has come; 0: none
    bool operator==(const TextState&) const = default;
};
std::optional<TextState> step_text(const ByteAutomaton& texts, bool escaped, TextState at,
                                   unsigned char byte);
bool may_end_text(const ByteAutomaton& texts, TextState at);
std::uint32_t least_text(const ByteAutomaton& texts, bool escaped, TextState at);
// The bytes of the decoded text that this byte of a JSON string completes; often none.
std::string decoded_by(TextState before, unsigned char byte);
// Whether the byte begins a code point of the decoded text.
bool begins_code_point(bool escaped, TextState before, unsigned char byte);
// How many of them begin in `next`, which is known to fit behind `at`.
std::uint64_t code_points_in(bool escaped, TextState at, std::string_view next);

__extension__ using Int128 = __int128;

struct NumberRule {
    bool whole = false;
    bool bounded = false;
    // In units of 1e-15, the finest that 15 digits reach; both count.
    Int128 first = 0, last = 0;
};
// Bounds from a schema's numbers; nullopt: nothing lies between them.
std::optional<NumberRule> number_rule(bool whole, std::optional<double> minimum,
                                      std::optional<double> exclusive_minimum,
                                      std::optional<double> maximum,
                                      std::optional<double> exclusive_maximum);

struct NumberState {
    std::uint64_t digits = 0;  // all of them, as one whole number
    std::uint16_t exponent = 0;
    std::uint8_t num_digits = 0, num_fraction = 0, num_exponent = 0;
    enum class Part : std::uint8_t {
        begin,
        minus,
        zero,
        whole,
        point,
        fraction,
        exponent,
        exponent_sign,
        exponent_digits
    } part = Part::begin;
    bool negative = false;
    bool operator==(const NumberState&) const = default;
};
std::optional<NumberState> step_number(const NumberRule& rule, NumberState at, unsigned char byte);
bool may_end_number(const NumberRule& rule, NumberState at);
std::uint32_t least_number(const NumberRule& rule, NumberState at);  // endless: no end

inline constexpr std::uint32_t endless = ByteAutomaton::dead;

}  // namespace moex
