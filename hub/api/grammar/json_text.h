// The spelling of JSON strings and numbers, byte by byte: the inside of a string whose decoded text
// an automaton accepts, and a number within bounds.
// A byte is refused unless the text can still end well after it, and each state knows its least
// bytes to an end. Pure.
// Rules that readers of an answer may rely on:
//   strings   valid UTF-8; any escape of RFC 8259, surrogates in pairs. A pattern applies to the
//             decoded text, and lengths count its code points.
//   numbers   at most 15 digits, which every reader keeps. Without bounds an exponent up to 300 is
//             allowed after a single digit before the point, so that no reader overflows. With
//             bounds there is no exponent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "hub/api/grammar/byte_automaton.h"

namespace moex {

// The state within a text: inside a JSON string (`escaped`), or inside a plain text.
struct TextState {
    ByteAutomaton::State state = 0;
    std::uint32_t escape = 0;  // bits of an escape that is open (see json_text.cpp); 0: none
    bool operator==(const TextState&) const = default;
};
std::optional<TextState> step_text(const ByteAutomaton& texts, bool escaped, TextState at,
                                   unsigned char byte);
bool may_end_text(const ByteAutomaton& texts, TextState at);
std::uint32_t least_text(const ByteAutomaton& texts, bool escaped, TextState at);
// Returns the bytes that the decoded text gains by the next `byte` of a JSON string; often no
// bytes.
std::string decoded_by(TextState before, unsigned char byte);
// Returns true if the next byte of a JSON string begins a code point of the decoded text.
bool begins_code_point(bool escaped, TextState before, unsigned char byte);
// Returns the number of code points that begin in `next`, which must be valid bytes after the state
// `at`.
std::uint64_t code_points_in(bool escaped, TextState at, std::string_view next);

__extension__ using Int128 = __int128;

struct NumberRule {
    bool whole = false;
    bool bounded = false;
    // Inclusive bounds of a number in units of 1e-15, the smallest difference that 15 digits can
    // express.
    Int128 first = 0, last = 0;
};
// Makes a number rule from the bounds in a schema; nullopt: no number is within these bounds.
std::optional<NumberRule> number_rule(bool whole, std::optional<double> minimum,
                                      std::optional<double> exclusive_minimum,
                                      std::optional<double> maximum,
                                      std::optional<double> exclusive_maximum);

struct NumberState {
    std::uint64_t digits = 0;  // all digits so far (integer and fraction), read as one whole number
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
// Returns the least further bytes to an end of the number; `endless`: the number cannot end.
std::uint32_t least_number(const NumberRule& rule, NumberState at);

inline constexpr std::uint32_t endless = ByteAutomaton::dead;

}  // namespace moex
