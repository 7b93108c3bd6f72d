// The spelling of JSON numbers within bounds, byte by byte. A byte is refused unless the number can
// still end well after it, and each state knows its least bytes to an end. Pure.
// Rules that readers of an answer may rely on:
//   integers  without bounds those of 64 bits, -2^63 to 2^64 - 1, and never an exponent. A bound
//             may lie beyond; an integer has at most 37 digits.
//   numbers   at most 15 digits, which every reader keeps. An exponent from -300 to 300 may follow
//   a
//             single digit before the point, so that no reader overflows. With bounds that digit is
//             not zero.
// Example: with the minimum 1e20, after the text `12` no number within 15 digits is large enough
// and an exponent does not fit; after `1.2` the text may go on `e20`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "hub/api/grammar/byte_automaton.h"

namespace moex {

__extension__ using Int128 = __int128;

// A number as JSON writes it: `digits` times 10 to the power of `exponent`.
struct Decimal {
    Int128 digits = 0;  // negative for a negative number
    int exponent = 0;
};
// Returns the decimal with the fewest digits from which `value` is read back.
Decimal decimal_of(double value);
// Returns the least common multiple of two numbers above 0.
Int128 common_multiple(Int128 a, Int128 b);

struct NumberBounds {
    std::optional<Decimal> minimum, exclusive_minimum, maximum, exclusive_maximum;
    // Numbers are multiples of this number of units: of 1 for integers, else of 1e-15. 0: no such
    // rule.
    Int128 multiple_of = 0;
};

struct NumberRule {
    // A positive number as mantissa * 10^(exponent - 20), with 21 digits in the mantissa.
    struct Scientific {
        Int128 mantissa = 0;
        int exponent = 0;
    };
    bool whole = false;
    bool bounded = false;
    // Inclusive bounds of a number that is written without an exponent, in units of 1 (integers) or
    // 1e-15, the smallest difference that 15 digits can express.
    Int128 first = 0, last = 0;
    // [number of digits behind the point]: in the same units, what numbers are multiples of.
    std::array<Int128, 16> steps{};
    // [sign], inclusive bounds of the magnitude of a number that is written with an exponent; the
    // first is above the last if there is no such number.
    Scientific lowest[2], highest[2];
};
// Makes a number rule from the bounds in a schema; nullopt: no number is within these bounds.
std::optional<NumberRule> number_rule(bool whole, const NumberBounds& bounds);
// Returns true if all integers within the bounds have more digits than an answer may write.
bool integers_are_too_long(const NumberBounds& bounds);

struct NumberState {
    Int128 digits = 0;  // all digits so far (integer and fraction), read as one whole number
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
    bool negative = false, negative_exponent = false;
    bool operator==(const NumberState&) const = default;
};
std::optional<NumberState> step_number(const NumberRule& rule, NumberState at, unsigned char byte);
bool may_end_number(const NumberRule& rule, NumberState at);
// Returns the least further bytes to an end of the number; `endless`: the number cannot end.
std::uint32_t least_number(const NumberRule& rule, NumberState at);

inline constexpr std::uint32_t endless = ByteAutomaton::dead;

}  // namespace moex
