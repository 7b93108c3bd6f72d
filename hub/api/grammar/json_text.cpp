#include "hub/api/grammar/json_text.h"

#include <algorithm>
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

}  // namespace moex
