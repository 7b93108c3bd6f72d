// A pattern as a tree: what a regular expression of ECMA-262 or the right side of a GBNF rule
// says, before it becomes an automaton.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "protocol/result.h"

namespace moex {

inline constexpr std::uint32_t unbounded = std::numeric_limits<std::uint32_t>::max();
inline constexpr char32_t code_point_max = 0x10ffff;

struct CodePoints {  // [first, last]
    char32_t first = 0, last = 0;
    bool operator==(const CodePoints&) const = default;
};
// Sorted, disjoint, without the surrogates, which no text holds.
std::vector<CodePoints> normalized(std::vector<CodePoints> ranges);
std::vector<CodePoints> complement(const std::vector<CodePoints>& ranges);  // of normalized ones

struct Expression {
    enum class Kind {
        characters,  // one code point of `ranges`
        sequence,    // the parts, one behind the other; none: the empty text
        choice,      // one of the parts; none: nothing at all
        repeat,      // the only part, min to max times
        text_begin,
        text_end,
        rule,   // GBNF: another rule's text
        token,  // GBNF: a token by its id
    };
    Kind kind = Kind::sequence;
    std::vector<CodePoints> ranges;
    std::vector<Expression> parts;
    std::uint32_t min = 0, max = unbounded;
    std::uint32_t index = 0;  // of the rule, or the token's id

    static Expression characters(std::vector<CodePoints> ranges) {
        return {.kind = Kind::characters, .ranges = normalized(std::move(ranges))};
    }
    static Expression of(Kind kind, std::vector<Expression> parts) {
        return {.kind = kind, .parts = std::move(parts)};
    }
    static Expression repeat(Expression part, std::uint32_t min, std::uint32_t max) {
        Expression out{.kind = Kind::repeat, .min = min, .max = max};
        out.parts.push_back(std::move(part));
        return out;
    }
};

// An ECMA-262 pattern with the u flag, as JSON schema uses them. Look-around, back references and
// word borders are unsupported, by name.
Result<Expression> parse_pattern(std::string_view pattern);

}  // namespace moex
