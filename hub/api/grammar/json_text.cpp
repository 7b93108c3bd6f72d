#include "hub/api/grammar/json_text.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "hub/model/tokenizer/utf8.h"

namespace moex {
namespace {

using State = ByteAutomaton::State;

// ---- Strings: TextState::escape has 16 bits for the value so far, 10 bits for a high surrogate,
// and the marks defined below.
constexpr std::uint32_t value_mask = 0xffff, high_shift = 16, high_mask = 0x3ff;
// The number of hex digits of a \u so far, plus one; 0: the escape is not a \u.
constexpr std::uint32_t digits_shift = 26, digits_mask = 7;
constexpr std::uint32_t pair_begun = 1u << 29, after_backslash = 1u << 30;

std::uint32_t plus(std::uint32_t a, std::uint32_t b) {
    return a == endless || b == endless ? endless : a + b;
}

// Returns the byte that a short escape means, e.g. '\n' for n; 0: there is no such escape.
unsigned char short_escape(unsigned char letter) {
    switch (letter) {
        case '"':
        case '\\':
        case '/': return letter;
        case 'b': return '\b';
        case 'f': return '\f';
        case 'n': return '\n';
        case 'r': return '\r';
        case 't': return '\t';
        default: return 0;
    }
}

State after_code_point(const ByteAutomaton& texts, State state, char32_t code_point) {
    std::string bytes;
    utf8_append(bytes, code_point);
    for (const char c : bytes) {
        state = texts.step(state, static_cast<unsigned char>(c));
        if (state == ByteAutomaton::dead) break;
    }
    return state;
}

// Returns the least distance in bytes to an end of the text after any code point of [first, last],
// all of which have the same number of bytes. From a state inside a code point each missing byte
// costs one byte, so whole blocks of code points need no search.
std::uint32_t least_behind_same(const ByteAutomaton& texts, State state, std::string_view first,
                                std::string_view last, bool open_first, bool open_last) {
    if (first.empty()) return texts.least_escaped[state];
    const auto rest = static_cast<std::uint32_t>(first.size() - 1);
    const unsigned from = open_first ? 0x80 : static_cast<unsigned char>(first[0]);
    const unsigned to = open_last ? 0xbf : static_cast<unsigned char>(last[0]);

    std::uint32_t best = endless;
    for (unsigned byte = from; byte <= to; ++byte) {
        const State next = texts.step(state, static_cast<unsigned char>(byte));
        if (next == ByteAutomaton::dead) continue;
        const bool first_open = open_first || byte > from, last_open = open_last || byte < to;
        const std::uint32_t here = first_open && last_open
                                       ? texts.least_escaped[next] - rest
                                       : least_behind_same(texts, next, first.substr(1),
                                                           last.substr(1), first_open, last_open);
        best = std::min(best, here);
    }
    return best;
}

std::uint32_t least_behind(const ByteAutomaton& texts, State state, char32_t first, char32_t last) {
    std::uint32_t best = endless;
    constexpr char32_t borders[] = {0x7f, 0x7ff, 0xd7ff, 0xffff, code_point_max};
    for (const char32_t border : borders) {
        if (first > last) break;
        if (first > border) continue;
        const char32_t end = std::min(border, last);
        std::string low, high;
        utf8_append(low, first >= 0xd800 && first <= 0xdfff ? char32_t{0xe000} : first);
        utf8_append(high, end);
        if (low <= high && !(end >= 0xd800 && end <= 0xdfff))
            best = std::min(best, least_behind_same(texts, state, low, high, false, false));
        first = border == 0xd7ff ? char32_t{0xe000} : border + 1;
    }
    return best;
}

// Returns the least distance in bytes to an end of the text after a pair of the high surrogate
// `high` and a low surrogate from `first_low` to `last_low`.
std::uint32_t least_behind_pair(const ByteAutomaton& texts, State state, std::uint32_t high,
                                std::uint32_t first_low, std::uint32_t last_low) {
    first_low = std::max(first_low, 0xdc00u);
    last_low = std::min(last_low, 0xdfffu);
    if (first_low > last_low) return endless;
    const char32_t base = 0x10000 + (static_cast<char32_t>(high) << 10);
    return least_behind(texts, state, base + (first_low - 0xdc00), base + (last_low - 0xdc00));
}

// Returns the least bytes to an end of the text from inside an escape whose \u has `num_digits` hex
// digits so far. These digits have the value `value`.
std::uint32_t least_hex(const ByteAutomaton& texts, TextState at, std::uint32_t num_digits,
                        std::uint32_t value) {
    const std::uint32_t missing = 4 - num_digits;
    const std::uint32_t first = value << (4 * missing), last = first | ((1u << (4 * missing)) - 1);

    if (at.escape & pair_begun)
        return plus(missing, least_behind_pair(texts, at.state, at.escape >> high_shift & high_mask,
                                               first, last));

    std::uint32_t best = endless;
    if (first < 0xd800) best = least_behind(texts, at.state, first, std::min(last, 0xd7ffu));
    if (last > 0xdfff)
        best = std::min(best, least_behind(texts, at.state, std::max(first, 0xe000u), last));
    const std::uint32_t high_first = std::max(first, 0xd800u), high_last = std::min(last, 0xdbffu);
    if (high_first <= high_last) {
        constexpr std::uint32_t second_half = 6;
        best = std::min(
            best,
            plus(second_half,
                 least_behind(
                     texts, at.state, 0x10000 + (static_cast<char32_t>(high_first - 0xd800) << 10),
                     0x10000 + (static_cast<char32_t>(high_last - 0xd800) << 10) + 0x3ff)));
    }
    return plus(missing, best);
}

std::uint32_t least_escape(const ByteAutomaton& texts, TextState at) {
    const std::uint32_t digits = at.escape >> digits_shift & digits_mask;
    if (digits > 0) return least_hex(texts, at, digits - 1, at.escape & value_mask);

    if (at.escape & after_backslash) {
        std::uint32_t best = plus(1, least_hex(texts, at, 0, 0));
        if (at.escape & pair_begun) return best;
        for (const unsigned char letter : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) {
            const State next = texts.step(at.state, short_escape(letter));
            if (next != ByteAutomaton::dead) best = std::min(best, 1 + texts.least_escaped[next]);
        }
        return best;
    }
    // 2 bytes: the backslash and the u of the low surrogate.
    return plus(2, least_hex(texts, at, 0, 0));
}

std::optional<TextState> if_alive(const ByteAutomaton& texts, TextState at) {
    if (at.escape != 0 && least_escape(texts, at) == endless) return std::nullopt;
    return at;
}

std::optional<TextState> step_hex(const ByteAutomaton& texts, TextState at, unsigned char byte) {
    const unsigned char lower = byte | 0x20;
    std::uint32_t digit = 0;
    if (byte >= '0' && byte <= '9')
        digit = byte - '0';
    else if (lower >= 'a' && lower <= 'f')
        digit = lower - 'a' + 10u;
    else
        return std::nullopt;

    const std::uint32_t num_digits = at.escape >> digits_shift & digits_mask;
    const std::uint32_t value = (at.escape & value_mask) << 4 | digit;
    const std::uint32_t kept = at.escape & (pair_begun | high_mask << high_shift);
    if (num_digits < 4)
        return if_alive(texts, {at.state, kept | (num_digits + 1) << digits_shift | value});

    if (at.escape & pair_begun) {
        if (value < 0xdc00 || value > 0xdfff) return std::nullopt;
        const std::uint32_t high = at.escape >> high_shift & high_mask;
        const State next = after_code_point(
            texts, at.state, 0x10000 + (static_cast<char32_t>(high) << 10) + (value - 0xdc00));
        if (next == ByteAutomaton::dead) return std::nullopt;
        return TextState{next, 0};
    }
    if (value >= 0xd800 && value <= 0xdbff)
        return if_alive(texts, {at.state, pair_begun | (value - 0xd800) << high_shift});
    if (value >= 0xdc00 && value <= 0xdfff) return std::nullopt;
    const State next = after_code_point(texts, at.state, value);
    if (next == ByteAutomaton::dead) return std::nullopt;
    return TextState{next, 0};
}

}  // namespace

std::optional<TextState> step_text(const ByteAutomaton& texts, bool escaped, TextState at,
                                   unsigned char byte) {
    if (!escaped || (at.escape == 0 && byte != '\\')) {
        if (escaped && (byte == '"' || byte < 0x20)) return std::nullopt;
        const State next = texts.step(at.state, byte);
        if (next == ByteAutomaton::dead) return std::nullopt;
        return TextState{next, 0};
    }

    if ((at.escape >> digits_shift & digits_mask) > 0) return step_hex(texts, at, byte);
    if (!(at.escape & after_backslash)) {
        if (byte != '\\') return std::nullopt;
        return if_alive(texts, {at.state, at.escape | after_backslash});
    }
    if (byte == 'u')
        return if_alive(texts, {at.state, (at.escape & ~after_backslash) | 1u << digits_shift});
    if (at.escape & pair_begun) return std::nullopt;
    const unsigned char meant = short_escape(byte);
    const State next = meant == 0 ? ByteAutomaton::dead : texts.step(at.state, meant);
    if (next == ByteAutomaton::dead) return std::nullopt;
    return TextState{next, 0};
}

bool may_end_text(const ByteAutomaton& texts, TextState at) {
    return at.escape == 0 && texts.accepts[at.state];
}

std::uint32_t least_text(const ByteAutomaton& texts, bool escaped, TextState at) {
    if (at.escape != 0) return least_escape(texts, at);
    return escaped ? texts.least_escaped[at.state] : texts.least[at.state];
}

std::string decoded_by(TextState before, unsigned char byte) {
    std::string out;
    if (before.escape == 0) {
        if (byte != '\\') out += static_cast<char>(byte);
        return out;
    }
    const std::uint32_t num_digits = before.escape >> digits_shift & digits_mask;
    if (num_digits == 0) {
        const unsigned char meant = before.escape & after_backslash ? short_escape(byte) : 0;
        if (meant != 0) out += static_cast<char>(meant);
        return out;
    }
    if (num_digits < 4) return out;

    const std::uint32_t digit = byte <= '9' ? byte - '0' : (byte | 0x20) - 'a' + 10u;
    const std::uint32_t value = (before.escape & value_mask) << 4 | digit;
    if (before.escape & pair_begun) {
        const std::uint32_t high = before.escape >> high_shift & high_mask;
        utf8_append(out, 0x10000 + (static_cast<char32_t>(high) << 10) + (value - 0xdc00));
    } else if (value < 0xd800 || value > 0xdfff) {
        utf8_append(out, value);
    }
    return out;
}

bool begins_code_point(bool escaped, TextState before, unsigned char byte) {
    if (before.escape != 0) return false;  // the backslash of the escape began the code point
    return escaped && byte == '\\' ? true : (byte & 0xc0) != 0x80;
}

namespace {

// Returns the state of an escape after `byte`, which must be a valid next byte; a '\\' outside of
// an escape begins one.
std::uint32_t escape_after(std::uint32_t escape, unsigned char byte) {
    const std::uint32_t digits = escape >> digits_shift & digits_mask;
    if (digits == 0) {
        if (!(escape & after_backslash)) return escape | after_backslash;
        return byte == 'u' ? (escape & ~after_backslash) | 1u << digits_shift : 0;
    }
    const std::uint32_t digit = byte <= '9' ? byte - '0' : (byte | 0x20) - 'a' + 10u;
    const std::uint32_t value = (escape & value_mask) << 4 | digit;
    if (digits < 4)
        return (escape & (pair_begun | high_mask << high_shift)) | (digits + 1) << digits_shift |
               value;
    const bool is_high = !(escape & pair_begun) && value >= 0xd800 && value <= 0xdbff;
    return is_high ? pair_begun | (value - 0xd800) << high_shift : 0;
}

}  // namespace

std::uint64_t code_points_in(bool escaped, TextState at, std::string_view next) {
    std::uint64_t count = 0;
    for (const char c : next) {
        const auto byte = static_cast<unsigned char>(c);
        count += begins_code_point(escaped, at, byte);
        if (escaped && (at.escape != 0 || byte == '\\')) at.escape = escape_after(at.escape, byte);
    }
    return count;
}

// ---- Numbers.
namespace {

using NumberPart = NumberState::Part;

constexpr std::uint32_t digits_max = 15, exponent_max = 300;
constexpr std::int64_t whole_end = 1'000'000'000'000'000;  // 10^15, the first number with 16 digits

Int128 power_of_ten(std::uint32_t exponent) {
    Int128 power = 1;
    while (exponent-- > 0) power *= 10;
    return power;
}

// Converts `value` to units of 1e-15, rounded up or down; a bound that is itself excluded moves by
// one more unit.
Int128 in_units(double value, bool up, bool excluded) {
    const Int128 unit_one = power_of_ten(digits_max), beyond = Int128{whole_end} * unit_one;
    if (value >= static_cast<double>(whole_end)) return beyond;
    if (value <= -static_cast<double>(whole_end)) return -beyond;

    char words[40];
    std::snprintf(words, sizeof words, "%.17e", value);
    // Find the fewest digits from which `value` is read back.
    for (int precision = 0; precision < 17; ++precision) {
        char shorter[40];
        std::snprintf(shorter, sizeof shorter, "%.*e", precision, value);
        if (std::strtod(shorter, nullptr) == value) {
            std::copy(shorter, shorter + sizeof shorter, words);
            break;
        }
    }

    Int128 units = 0;
    int scale = 0;
    bool behind_point = false;
    const char* at = words[0] == '-' ? words + 1 : words;
    for (; *at != 'e'; ++at) {
        if (*at == '.') {
            behind_point = true;
            continue;
        }
        units = units * 10 + (*at - '0');
        scale -= behind_point;
    }
    scale += std::atoi(at + 1) + static_cast<int>(digits_max);

    bool is_exact = true;
    for (; scale > 0; --scale) units *= 10;
    for (; scale < 0; ++scale) {
        is_exact = is_exact && units % 10 == 0;
        units /= 10;
    }
    const bool negative = words[0] == '-';
    if (negative) units = -units;
    if (is_exact) return excluded ? units + (up ? 1 : -1) : units;
    if (up && !negative) ++units;  // adjusts, since the division rounded toward zero
    if (!up && negative) --units;
    return units;
}

// Returns true if both [a_first, a_last] and [b_first, b_last] contain the same multiple of `step`.
// All arguments are >= 0.
bool meets(Int128 a_first, Int128 a_last, Int128 b_first, Int128 b_last, Int128 step) {
    const Int128 first = std::max(a_first, b_first), last = std::min(a_last, b_last);
    if (first > last) return false;
    return (first + step - 1) / step * step <= last;
}

struct Magnitudes {
    Int128 first, last;
};
Magnitudes magnitudes(const NumberRule& rule, bool negative) {
    if (!negative) return {std::max<Int128>(rule.first, 0), rule.last};
    return {std::max<Int128>(-rule.last, 0), -rule.first};
}

// Returns the fewest further bytes after which the number is within its bounds. The number must
// have a digit already.
std::uint32_t least_bounded(const NumberRule& rule, const NumberState& at) {
    const auto [first, last] = magnitudes(rule, at.negative);
    if (last < 0) return endless;
    const std::uint32_t left = digits_max - at.num_digits;
    std::uint32_t best = endless;

    if (at.part == NumberPart::point || at.part == NumberPart::fraction) {
        const Int128 begin = at.digits * power_of_ten(digits_max - at.num_fraction);
        const Int128 width = power_of_ten(digits_max - at.num_fraction);
        for (std::uint32_t more = at.part == NumberPart::point ? 1 : 0; more <= left; ++more) {
            const Int128 step = power_of_ten(digits_max - at.num_fraction - more);
            if (meets(begin, begin + width - step, first, last, step)) return more;
        }
        return endless;
    }

    const std::uint32_t wholes_max = at.part == NumberPart::zero ? 0 : left;
    for (std::uint32_t wholes = 0; wholes <= wholes_max; ++wholes) {
        const Int128 width = power_of_ten(wholes + digits_max);
        const Int128 begin = at.digits * width;
        const std::uint32_t fraction_max = rule.whole ? 0 : left - wholes;
        for (std::uint32_t fraction = 0; fraction <= fraction_max; ++fraction) {
            const std::uint32_t bytes = wholes + (fraction > 0 ? 1 + fraction : 0);
            if (bytes >= best) break;
            const Int128 step = power_of_ten(digits_max - fraction);
            if (meets(begin, begin + width - step, first, last, step)) best = bytes;
        }
    }
    return best;
}

std::optional<NumberState> with_digit(NumberState at, unsigned char byte, bool fraction) {
    if (at.num_digits >= digits_max) return std::nullopt;
    at.digits = at.digits * 10 + (byte - '0');
    ++at.num_digits;
    at.num_fraction = static_cast<std::uint8_t>(at.num_fraction + fraction);
    return at;
}

// Advances the state by one byte as the syntax of numbers allows; the caller checks the bounds.
std::optional<NumberState> step_syntax(const NumberRule& rule, NumberState at, unsigned char byte) {
    const bool is_digit = byte >= '0' && byte <= '9';
    const auto to = [&](std::optional<NumberState> next, NumberPart part) {
        if (next) next->part = part;
        return next;
    };
    const bool takes_exponent = !rule.whole && !rule.bounded && (byte == 'e' || byte == 'E') &&
                                at.num_digits - at.num_fraction == 1;
    switch (at.part) {
        case NumberPart::begin:
            if (byte == '-') {
                at.negative = true;
                return to(at, NumberPart::minus);
            }
            [[fallthrough]];
        case NumberPart::minus:
            if (!is_digit) return std::nullopt;
            return to(with_digit(at, byte, false),
                      byte == '0' ? NumberPart::zero : NumberPart::whole);
        case NumberPart::whole:
            if (is_digit) return with_digit(at, byte, false);
            [[fallthrough]];
        case NumberPart::zero:
            if (byte == '.' && !rule.whole && at.num_digits < digits_max)
                return to(at, NumberPart::point);
            if (takes_exponent) return to(at, NumberPart::exponent);
            return std::nullopt;
        case NumberPart::point:
        case NumberPart::fraction:
            if (is_digit) return to(with_digit(at, byte, true), NumberPart::fraction);
            if (takes_exponent && at.part == NumberPart::fraction)
                return to(at, NumberPart::exponent);
            return std::nullopt;
        case NumberPart::exponent:
            if (byte == '+' || byte == '-') return to(at, NumberPart::exponent_sign);
            [[fallthrough]];
        case NumberPart::exponent_sign:
        case NumberPart::exponent_digits:
            if (!is_digit || at.num_exponent >= 3) return std::nullopt;
            at.exponent = static_cast<std::uint16_t>(at.exponent * 10 + (byte - '0'));
            ++at.num_exponent;
            if (at.exponent > exponent_max) return std::nullopt;
            return to(at, NumberPart::exponent_digits);
    }
    return std::nullopt;
}

}  // namespace

std::optional<NumberRule> number_rule(bool whole, std::optional<double> minimum,
                                      std::optional<double> exclusive_minimum,
                                      std::optional<double> maximum,
                                      std::optional<double> exclusive_maximum) {
    NumberRule rule{.whole = whole};
    rule.bounded = minimum || exclusive_minimum || maximum || exclusive_maximum;
    const Int128 all = Int128{whole_end} * power_of_ten(digits_max) - 1;
    rule.first = -all;
    rule.last = all;
    if (minimum) rule.first = std::max(rule.first, in_units(*minimum, true, false));
    if (exclusive_minimum)
        rule.first = std::max(rule.first, in_units(*exclusive_minimum, true, true));
    if (maximum) rule.last = std::min(rule.last, in_units(*maximum, false, false));
    if (exclusive_maximum)
        rule.last = std::min(rule.last, in_units(*exclusive_maximum, false, true));
    if (rule.bounded && least_number(rule, {}) == endless) return std::nullopt;
    return rule;
}

std::optional<NumberState> step_number(const NumberRule& rule, NumberState at, unsigned char byte) {
    const std::optional<NumberState> next = step_syntax(rule, at, byte);
    if (next && rule.bounded && least_number(rule, *next) == endless) return std::nullopt;
    return next;
}

bool may_end_number(const NumberRule& rule, NumberState at) { return least_number(rule, at) == 0; }

std::uint32_t least_number(const NumberRule& rule, NumberState at) {
    if (rule.bounded && at.num_digits > 0) return least_bounded(rule, at);
    if (rule.bounded) {
        std::uint32_t best = endless;
        for (const unsigned char byte : std::string("-0123456789"))
            if (const auto next = step_syntax(rule, at, byte))
                best = std::min(best, plus(1, least_number(rule, *next)));
        return best;
    }
    switch (at.part) {
        case NumberPart::zero:
        case NumberPart::whole:
        case NumberPart::fraction:
        case NumberPart::exponent_digits: return 0;
        default: return 1;
    }
}

}  // namespace moex
