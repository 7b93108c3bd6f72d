#include "hub/api/grammar/json_number.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace moex {
namespace {

using NumberPart = NumberState::Part;
using Scientific = NumberRule::Scientific;

constexpr std::uint32_t digits_max = 15, integer_digits_max = 37;
constexpr int exponent_max = 300, mantissa_scale = 20;
constexpr int beyond = 2000;  // an exponent above those of all numbers that JSON readers know

std::uint32_t sum_of(std::uint32_t a, std::uint32_t b) {
    return a == endless || b == endless ? endless : a + b;
}

constexpr Int128 power_of_ten(std::uint32_t exponent) {
    Int128 power = 1;
    while (exponent-- > 0) power *= 10;
    return power;
}
constexpr auto powers_of_ten = [] {
    std::array<Int128, integer_digits_max + 1> powers{};
    for (std::uint32_t i = 0; i < powers.size(); ++i) powers[i] = power_of_ten(i);
    return powers;
}();

std::uint32_t digits_of(const NumberRule& rule) {
    return rule.whole ? integer_digits_max : digits_max;
}
std::uint32_t scale_of(const NumberRule& rule) { return rule.whole ? 0 : digits_max; }

// Converts a bound to units of 10^-scale, rounded up or down; a bound that is itself excluded moves
// by one more unit. Values beyond `limit` become `limit`.
Int128 in_units(Decimal bound, std::uint32_t scale, Int128 limit, bool up, bool excluded) {
    const bool negative = bound.digits < 0;
    Int128 units = negative ? -bound.digits : bound.digits;
    bool is_exact = true;
    int shift = bound.exponent + static_cast<int>(scale);
    for (; shift > 0 && units != 0; --shift) {
        if (units > limit / 10) return negative ? -limit : limit;
        units *= 10;
    }
    for (; shift < 0 && units != 0; ++shift) {
        is_exact = is_exact && units % 10 == 0;
        units /= 10;
    }
    units = std::min(units, limit);
    if (negative) units = -units;
    if (is_exact) return excluded ? units + (up ? 1 : -1) : units;
    if (up && !negative) ++units;  // adjusts, since the division rounded toward zero
    if (!up && negative) --units;
    return units;
}

// Returns the magnitude of `bound`; if it is excluded, moved by one in the last digit, up or down.
Scientific magnitude_of(Decimal bound, bool excluded, bool up) {
    Int128 digits = bound.digits < 0 ? -bound.digits : bound.digits;
    if (digits == 0) return {0, -beyond};
    int exponent = bound.exponent + mantissa_scale;
    while (digits < powers_of_ten[mantissa_scale]) {
        digits *= 10;
        --exponent;
    }
    while (digits >= powers_of_ten[mantissa_scale + 1]) {  // more digits than 64 bits have
        digits /= 10;
        ++exponent;
    }
    if (excluded) digits += up ? 1 : -1;
    return {digits, exponent};
}

bool is_above(const Scientific& a, const Scientific& b) {
    return a.exponent != b.exponent ? a.exponent > b.exponent : a.mantissa > b.mantissa;
}

// Narrows the magnitudes of one sign by a bound. A lower bound on a number is an upper bound on the
// magnitude of a negative number.
void narrow(NumberRule& rule, Decimal bound, bool is_lower, bool excluded) {
    for (const bool negative : {false, true}) {
        const bool limits_from_below = is_lower != negative;
        const bool is_same_sign = (bound.digits < 0) == negative && bound.digits != 0;
        Scientific &lowest = rule.lowest[negative], &highest = rule.highest[negative];
        if (limits_from_below) {
            if (!is_same_sign) continue;  // every magnitude is beyond the bound
            const Scientific from = magnitude_of(bound, excluded, true);
            if (is_above(from, lowest)) lowest = from;
        } else {
            const Scientific to = is_same_sign ? magnitude_of(bound, excluded, false)
                                               : Scientific{0, -beyond};
            if (is_above(highest, to)) highest = to;
        }
    }
}

// Returns true if both [a_first, a_last] and [b_first, b_last] contain the same multiple of `step`.
// All arguments are >= 0.
bool meets(Int128 a_first, Int128 a_last, Int128 b_first, Int128 b_last, Int128 step) {
    const Int128 first = std::max(a_first, b_first), last = std::min(a_last, b_last);
    if (first > last) return false;
    return (first + step - 1) / step * step <= last;
}

// ---- Numbers with an exponent.
std::uint32_t num_digits_of(int value) {
    std::uint32_t count = 1;
    for (; value >= 10; value /= 10) ++count;
    return count;
}
std::uint32_t exponent_bytes(int exponent) {
    return (exponent < 0) + num_digits_of(std::abs(exponent));
}

struct Exponents {
    int first, last;  // first > last: none
};
Exponents exponents_of(const NumberRule& rule, bool negative, Int128 mantissa) {
    const Scientific &low = rule.lowest[negative], &high = rule.highest[negative];
    const int first = low.exponent + (mantissa < low.mantissa ? 1 : 0);
    const int last = high.exponent - (mantissa > high.mantissa ? 1 : 0);
    return {std::max(first, -exponent_max), std::min(last, exponent_max)};
}

Int128 mantissa_of(const NumberState& at) {
    return at.digits * powers_of_ten[mantissa_scale - at.num_fraction];
}

// Returns the least bytes to the end of a number whose exponent has begun.
std::uint32_t least_in_exponent(const NumberRule& rule, const NumberState& at) {
    const Exponents all = exponents_of(rule, at.negative, mantissa_of(at));
    if (all.first > all.last) return endless;
    if (at.part == NumberPart::exponent) return exponent_bytes(std::clamp(0, all.first, all.last));
    const int first = std::max(at.negative_exponent ? -all.last : all.first, 0);
    const int last = at.negative_exponent ? -all.first : all.last;
    if (first > last) return endless;
    if (at.part == NumberPart::exponent_sign) return num_digits_of(first);
    constexpr std::uint32_t exponent_digits_max = 3;
    int width = 1;
    for (std::uint32_t more = 0; more + at.num_exponent <= exponent_digits_max; ++more) {
        const int from = at.exponent * width;
        if (std::max(from, first) <= std::min(from + width - 1, last)) return more;
        width *= 10;
    }
    return endless;
}

// Returns the least bytes to the end of a number that gets an exponent; its digits may go on
// before.
std::uint32_t least_with_exponent(const NumberRule& rule, const NumberState& at) {
    if (at.num_digits - at.num_fraction != 1 || at.digits < powers_of_ten[at.num_fraction])
        return endless;
    const Scientific &low = rule.lowest[at.negative], &high = rule.highest[at.negative];
    const int first = std::max(low.exponent, -exponent_max);
    const int last = std::min(high.exponent, exponent_max);
    if (first > last) return endless;
    // Try the exponents of both bounds, and the shortest one between them.
    const int between = last - first < 2 ? first : std::clamp(0, first + 1, last - 1);
    std::uint32_t best = endless;
    for (const int exponent : {first, between, last}) {
        const Int128 from = exponent == low.exponent ? low.mantissa : Int128{0};
        const Int128 to = exponent == high.exponent ? high.mantissa
                                                    : powers_of_ten[mantissa_scale + 1] - 1;
        const Int128 begin = mantissa_of(at);
        const Int128 width = powers_of_ten[mantissa_scale - at.num_fraction];
        for (std::uint32_t more = at.part == NumberPart::point ? 1 : 0;
             more + at.num_digits <= digits_max; ++more) {
            const Int128 step = powers_of_ten[mantissa_scale - at.num_fraction - more];
            if (!meets(begin, begin + width - step, from, to, step)) continue;
            const bool opens_fraction = more > 0 && at.part == NumberPart::whole;
            best = std::min(best, more + opens_fraction + 1 + exponent_bytes(exponent));
            break;
        }
    }
    return best;
}

// ---- Numbers without an exponent.
struct Magnitudes {
    Int128 first, last;
};
Magnitudes magnitudes(const NumberRule& rule, bool negative) {
    if (!negative) return {std::max<Int128>(rule.first, 0), rule.last};
    return {std::max<Int128>(-rule.last, 0), -rule.first};
}

// Returns the fewest further bytes after which the number is within its bounds. The number must
// have a digit already.
std::uint32_t least_without_exponent(const NumberRule& rule, const NumberState& at) {
    const auto [first, last] = magnitudes(rule, at.negative);
    if (last < 0) return endless;
    const std::uint32_t left = digits_of(rule) - at.num_digits, scale = scale_of(rule);
    std::uint32_t best = endless;

    if (at.part == NumberPart::point || at.part == NumberPart::fraction) {
        const Int128 width = powers_of_ten[scale - at.num_fraction];
        const Int128 begin = at.digits * width;
        for (std::uint32_t more = at.part == NumberPart::point ? 1 : 0; more <= left; ++more) {
            const std::uint32_t fraction = at.num_fraction + more;
            const Int128 unit = powers_of_ten[scale - fraction];
            if (meets(begin, begin + width - unit, first, last, rule.steps[fraction])) return more;
        }
        return endless;
    }

    const std::uint32_t wholes_max = at.part == NumberPart::zero ? 0 : left;
    for (std::uint32_t wholes = 0; wholes <= wholes_max; ++wholes) {
        const Int128 width = powers_of_ten[wholes + scale];
        const Int128 begin = at.digits * width;
        if (begin > last) break;
        const std::uint32_t fraction_max = rule.whole ? 0 : left - wholes;
        for (std::uint32_t fraction = 0; fraction <= fraction_max; ++fraction) {
            const std::uint32_t bytes = wholes + (fraction > 0 ? 1 + fraction : 0);
            if (bytes >= best) break;
            const Int128 unit = powers_of_ten[scale - fraction];
            if (meets(begin, begin + width - unit, first, last, rule.steps[fraction])) best = bytes;
        }
    }
    return best;
}

std::uint32_t least_bounded(const NumberRule& rule, const NumberState& at) {
    if (at.part >= NumberPart::exponent) return least_in_exponent(rule, at);
    const std::uint32_t plain = least_without_exponent(rule, at);
    return rule.whole || plain == 0 ? plain : std::min(plain, least_with_exponent(rule, at));
}

std::optional<NumberState> with_digit(const NumberRule& rule, NumberState at, unsigned char byte,
                                      bool fraction) {
    if (at.num_digits >= digits_of(rule)) return std::nullopt;
    at.digits = at.digits * 10 + (byte - '0');
    ++at.num_digits;
    at.num_fraction = static_cast<std::uint8_t>(at.num_fraction + fraction);
    return at;
}

// Advances an exponent, after its 'e', by one byte.
std::optional<NumberState> step_exponent(NumberState at, unsigned char byte) {
    if (at.part == NumberPart::exponent && (byte == '+' || byte == '-')) {
        at.negative_exponent = byte == '-';
        at.part = NumberPart::exponent_sign;
        return at;
    }
    if (byte < '0' || byte > '9' || at.num_exponent >= 3) return std::nullopt;
    at.exponent = static_cast<std::uint16_t>(at.exponent * 10 + (byte - '0'));
    ++at.num_exponent;
    if (at.exponent > exponent_max) return std::nullopt;
    at.part = NumberPart::exponent_digits;
    return at;
}

// Advances the state by one byte as the syntax of numbers allows; the caller checks the bounds.
std::optional<NumberState> step_syntax(const NumberRule& rule, NumberState at, unsigned char byte) {
    const bool is_digit = byte >= '0' && byte <= '9';
    const auto to = [&](std::optional<NumberState> next, NumberPart part) {
        if (next) next->part = part;
        return next;
    };
    const bool takes_exponent = !rule.whole && (byte == 'e' || byte == 'E') &&
                                at.num_digits - at.num_fraction == 1 &&
                                (!rule.bounded || at.digits >= powers_of_ten[at.num_fraction]);
    switch (at.part) {
        case NumberPart::begin:
            if (byte == '-') {
                at.negative = true;
                return to(at, NumberPart::minus);
            }
            [[fallthrough]];
        case NumberPart::minus:
            if (!is_digit) return std::nullopt;
            return to(with_digit(rule, at, byte, false),
                      byte == '0' ? NumberPart::zero : NumberPart::whole);
        case NumberPart::whole:
            if (is_digit) return with_digit(rule, at, byte, false);
            [[fallthrough]];
        case NumberPart::zero:
            if (byte == '.' && !rule.whole && at.num_digits < digits_max)
                return to(at, NumberPart::point);
            if (takes_exponent) return to(at, NumberPart::exponent);
            return std::nullopt;
        case NumberPart::point:
        case NumberPart::fraction:
            if (is_digit) return to(with_digit(rule, at, byte, true), NumberPart::fraction);
            if (takes_exponent && at.part == NumberPart::fraction)
                return to(at, NumberPart::exponent);
            return std::nullopt;
        case NumberPart::exponent:
        case NumberPart::exponent_sign:
        case NumberPart::exponent_digits: return step_exponent(at, byte);
    }
    return std::nullopt;
}

constexpr Decimal int64_min{-(Int128{1} << 63), 0}, uint64_max{(Int128{1} << 64) - 1, 0};

}  // namespace

Decimal decimal_of(double value) {
    char words[40];
    std::snprintf(words, sizeof words, "%.17e", value);
    for (int precision = 0; precision < 17; ++precision) {
        char shorter[40];
        std::snprintf(shorter, sizeof shorter, "%.*e", precision, value);
        if (std::strtod(shorter, nullptr) == value) {
            std::copy(shorter, shorter + sizeof shorter, words);
            break;
        }
    }

    Decimal out;
    bool behind_point = false;
    const char* at = words[0] == '-' ? words + 1 : words;
    for (; *at != 'e'; ++at) {
        if (*at == '.') {
            behind_point = true;
            continue;
        }
        out.digits = out.digits * 10 + (*at - '0');
        out.exponent -= behind_point;
    }
    out.exponent += std::atoi(at + 1);
    if (words[0] == '-') out.digits = -out.digits;
    return out;
}

Int128 common_multiple(Int128 a, Int128 b) {
    Int128 larger = a, smaller = b;
    while (smaller != 0) larger = std::exchange(smaller, larger % smaller);
    return a / larger * b;
}

std::optional<NumberRule> number_rule(bool whole, const NumberBounds& bounds) {
    NumberRule rule{.whole = whole};
    const auto &from = bounds.minimum, &above = bounds.exclusive_minimum;
    const auto &to = bounds.maximum, &below = bounds.exclusive_maximum;
    const bool has_step = bounds.multiple_of > 0;
    rule.bounded = whole || from || above || to || below || has_step;
    for (const bool negative : {false, true}) {
        rule.lowest[negative] = {0, -beyond};
        rule.highest[negative] = {powers_of_ten[mantissa_scale + 1] - 1, beyond};
        // A multiple of a fraction has no exponent.
        if (has_step && !whole) rule.highest[negative] = {0, -2 * beyond};
    }
    const std::uint32_t scale = scale_of(rule);
    for (std::uint32_t fraction = 0; fraction <= scale; ++fraction)
        rule.steps[fraction] = common_multiple(powers_of_ten[scale - fraction],
                                               has_step ? bounds.multiple_of : 1);
    const Int128 limit = powers_of_ten[digits_of(rule) + scale] - 1;
    rule.first = -limit;
    rule.last = limit;
    if (from) rule.first = std::max(rule.first, in_units(*from, scale, limit + 1, true, false));
    if (above) rule.first = std::max(rule.first, in_units(*above, scale, limit + 1, true, true));
    if (to) rule.last = std::min(rule.last, in_units(*to, scale, limit + 1, false, false));
    if (below) rule.last = std::min(rule.last, in_units(*below, scale, limit + 1, false, true));
    if (from) narrow(rule, *from, true, false);
    if (above) narrow(rule, *above, true, true);
    if (to) narrow(rule, *to, false, false);
    if (below) narrow(rule, *below, false, true);
    if (whole) {
        // Without a bound on a side, integers have 64 bits, unless the other bound lies beyond.
        if (!from && !above && rule.last >= int64_min.digits)
            rule.first = std::max(rule.first, int64_min.digits);
        if (!to && !below && rule.first <= uint64_max.digits)
            rule.last = std::min(rule.last, uint64_max.digits);
    }
    if (rule.bounded && least_number(rule, {}) == endless) return std::nullopt;
    return rule;
}

bool integers_are_too_long(const NumberBounds& bounds) {
    const Int128 limit = powers_of_ten[integer_digits_max];
    const auto is_far = [&](const std::optional<Decimal>& bound, bool up) {
        if (!bound) return false;
        const Int128 units = in_units(*bound, 0, limit, up, false);
        return up ? units >= limit : units <= -limit;
    };
    return is_far(bounds.minimum, true) || is_far(bounds.exclusive_minimum, true) ||
           is_far(bounds.maximum, false) || is_far(bounds.exclusive_maximum, false);
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
        for (const unsigned char byte : {'-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'})
            if (const auto next = step_syntax(rule, at, byte))
                best = std::min(best, sum_of(1, least_number(rule, *next)));
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
