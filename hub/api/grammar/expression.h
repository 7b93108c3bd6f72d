// A pattern as a syntax tree: a regular expression of ECMA-262, or the right side of a GBNF rule,
// before it becomes an automaton.
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
// Returns the ranges of code points sorted and disjoint, without surrogates, which no text
// contains.
std::vector<CodePoints> normalized(std::vector<CodePoints> ranges);
// Requires normalized ranges.
std::vector<CodePoints> complement(const std::vector<CodePoints>& ranges);

struct Expression {
    enum class Kind {
        characters,  // one code point of `ranges`
        sequence,    // all parts, one after another; without parts the empty text
        choice,      // one of the parts; without parts no text at all
        repeat,      // the only part, repeated min to max times
        text_begin,
        text_end,
        rule,   // GBNF: the text of another rule
        token,  // GBNF: a token by its id
    };
    Kind kind = Kind::sequence;
    std::vector<CodePoints> ranges;
    std::vector<Expression> parts;
    std::uint32_t min = 0, max = unbounded;
    std::uint32_t index = 0;  // index of the rule (GBNF), or id of the token

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

// Parses an ECMA-262 pattern with the u flag, as JSON Schema uses it. Look-around, back references
// and word borders are refused as `unsupported`, by name.
Result<Expression> parse_pattern(std::string_view pattern);

}  // namespace moex
