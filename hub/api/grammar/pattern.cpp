// Parses regular expressions of ECMA-262, 22.2.1 (with the u flag), as far as an automaton can
// represent them.
#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include <utf8proc.h>

#include "hub/api/grammar/expression.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {
namespace {

using ExpressionKind = Expression::Kind;

constexpr std::uint32_t depth_max = 64, count_max = 100'000;

const std::vector<CodePoints> digits{{'0', '9'}};
const std::vector<CodePoints> word_characters{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
// WhiteSpace and LineTerminator.
const std::vector<CodePoints> blanks{
    {0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
    {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const std::vector<CodePoints> line_ends{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

// Returns the code points of \p{L}, \p{Lu}, ...: a general category of Unicode, or a group of
// categories, by its short name.
std::optional<std::vector<CodePoints>> of_category(const std::string& name) {
    if (name.empty() || name.size() > 2) return std::nullopt;
    std::vector<CodePoints> out;
    bool known = false;
    for (char32_t c = 0; c <= code_point_max; ++c) {
        const std::string_view category = utf8proc_category_string(
            static_cast<utf8proc_int32_t>(c));
        if (!category.starts_with(name)) continue;
        known = true;
        if (!out.empty() && out.back().last + 1 == c)
            out.back().last = c;
        else
            out.push_back({c, c});
    }
    if (!known) return std::nullopt;
    return normalized(std::move(out));
}

class PatternParser {
  public:
    explicit PatternParser(std::string_view pattern) : pattern_(pattern) {}

    Result<Expression> parse() {
        if (!utf8_is_valid(pattern_))
            return Error{ErrorCode::invalid_argument, "a pattern is not UTF-8"};
        Expression whole = choice(0);
        if (!problem_ && at_ < pattern_.size()) fail("an unmatched )");
        if (problem_) return *problem_;
        return whole;
    }

  private:
    char peek() const { return at_ < pattern_.size() ? pattern_[at_] : '\0'; }
    bool done() const { return problem_ || at_ >= pattern_.size(); }
    bool take(std::string_view words) {
        if (problem_ || !pattern_.substr(at_).starts_with(words)) return false;
        at_ += words.size();
        return true;
    }
    void fail(std::string_view what, ErrorCode code = ErrorCode::invalid_argument) {
        if (!problem_)
            problem_ = Error{code, text("the pattern ", pattern_.substr(0, 80), " has ", what,
                                        " at byte ", at_)};
    }
    void unsupported(std::string_view what) {
        fail(text(what, ", which is not supported,"), ErrorCode::unsupported);
    }
    char32_t character() {
        const Utf8Step step = utf8_step(pattern_, at_);
        at_ += step.num_bytes;
        return step.code_point;
    }

    Expression choice(std::uint32_t depth) {
        if (depth > depth_max) fail("too many groups inside each other");
        std::vector<Expression> parts;
        do parts.push_back(sequence(depth));
        while (!done() && take("|"));
        if (parts.size() == 1) return std::move(parts.front());
        return Expression::of(ExpressionKind::choice, std::move(parts));
    }

    Expression sequence(std::uint32_t depth) {
        std::vector<Expression> parts;
        while (!done() && peek() != '|' && peek() != ')') parts.push_back(quantified(depth));
        return Expression::of(ExpressionKind::sequence, std::move(parts));
    }

    Expression quantified(std::uint32_t depth) {
        Expression one = atom(depth);
        while (!done()) {
            std::uint32_t min = 0, max = unbounded;
            const std::size_t begin = at_;
            if (take("*")) {
            } else if (take("+")) {
                min = 1;
            } else if (take("?")) {
                max = 1;
            } else if (!braces(min, max)) {
                break;
            }
            if (one.kind == ExpressionKind::text_begin || one.kind == ExpressionKind::text_end) {
                at_ = begin;
                fail("nothing to repeat");
            }
            take("?");  // the same texts match a lazy quantifier and a greedy one
            one = Expression::repeat(std::move(one), min, max);
            if (peek() == '*' || peek() == '+' || peek() == '?') fail("nothing to repeat");
        }
        return one;
    }

    bool braces(std::uint32_t& min, std::uint32_t& max) {
        if (!take("{")) return false;
        const auto number = [&](std::uint32_t& out) {
            const std::size_t begin = at_;
            std::uint64_t value = 0;
            while (peek() >= '0' && peek() <= '9' && value <= count_max)
                value = value * 10 + static_cast<std::uint64_t>(pattern_[at_++] - '0');
            out = static_cast<std::uint32_t>(value);
            return at_ > begin;
        };

        if (!number(min)) fail("an open {");
        max = min;
        if (take(",") && !number(max)) max = unbounded;
        if (!take("}") || max < min) fail("an invalid count in braces");
        if (min > count_max || (max != unbounded && max > count_max))
            fail(text("a count above ", count_max));
        return true;
    }

    Expression atom(std::uint32_t depth) {
        if (take("^")) return {.kind = ExpressionKind::text_begin};
        if (take("$")) return {.kind = ExpressionKind::text_end};
        if (take(".")) return Expression::characters(complement(line_ends));
        if (take("[")) return Expression::characters(char_class());
        if (take("(")) return group(depth);
        if (take("\\")) return escape();
        if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')
            fail("nothing to repeat");
        if (peek() == ']' || peek() == '}') fail(text("an unmatched ", peek()));
        const char32_t c = character();
        return Expression::characters({{c, c}});
    }

    Expression group(std::uint32_t depth) {
        if (take("?=") || take("?!") || take("?<=") || take("?<!")) unsupported("look-around");
        if (take("?<")) {
            while (!done() && peek() != '>') ++at_;
            if (!take(">")) fail("an unnamed group");
        } else if (!take("?:") && peek() == '?') {
            fail("an unknown group");
        }
        Expression inside = choice(depth + 1);
        if (!take(")")) fail("an open (");
        return inside;
    }

    Expression escape() {
        if (peek() >= '1' && peek() <= '9') unsupported("a back reference");
        if (peek() == 'k') unsupported("a back reference");
        if (peek() == 'b' || peek() == 'B') unsupported("a word border");
        return Expression::characters(escaped());
    }

    std::optional<char32_t> hex(std::size_t num_digits) {
        if (at_ + num_digits > pattern_.size()) return std::nullopt;
        char32_t value = 0;
        for (const char c : pattern_.substr(at_, num_digits)) {
            const char lower = static_cast<char>(c | 0x20);
            if (c >= '0' && c <= '9')
                value = value * 16 + static_cast<char32_t>(c - '0');
            else if (lower >= 'a' && lower <= 'f')
                value = value * 16 + static_cast<char32_t>(lower - 'a' + 10);
            else
                return std::nullopt;
        }
        at_ += num_digits;
        return value;
    }

    // Reads the rest of a Unicode escape after its \u: four digits, a pair of surrogates, or
    // braces.
    char32_t unicode_escape() {
        if (take("{")) {
            const std::size_t end = std::min(pattern_.find('}', at_), pattern_.size());
            const auto value = end > at_ && end - at_ <= 6 ? hex(end - at_) : std::nullopt;
            if (!value || *value > code_point_max || !take("}")) fail("a broken \\u{}");
            return value.value_or(0);
        }
        const auto first = hex(4);
        if (!first) fail("a broken \\u");
        if (first && *first >= 0xd800 && *first < 0xdc00 && take("\\u")) {
            const auto second = hex(4);
            if (!second || *second < 0xdc00 || *second > 0xdfff) fail("half a surrogate pair");
            return 0x10000 + ((*first - 0xd800) << 10) + (second.value_or(0xdc00) - 0xdc00);
        }
        return first.value_or(0);
    }

    std::vector<CodePoints> property(bool negated) {
        const std::size_t end = pattern_.find('}', at_);
        if (!take("{") || end == std::string_view::npos) {
            fail("a broken \\p{}");
            return {};
        }
        std::string name(pattern_.substr(at_, end - at_));
        if (name == "Letter") name = "L";
        if (name == "Number") name = "N";
        const auto ranges = of_category(name);
        if (!ranges) unsupported(text("\\p{", name, "}"));
        at_ = end + 1;
        return negated ? complement(ranges.value_or(digits)) : ranges.value_or(digits);
    }

    // Reads an escape after its backslash, inside a character class or outside.
    std::vector<CodePoints> escaped() {
        if (done()) fail("a \\ at its end");
        const char c = peek();
        const auto one = [](char32_t value) { return std::vector<CodePoints>{{value, value}}; };
        if (static_cast<unsigned char>(c) >= 0x80) return one(character());
        ++at_;
        switch (c) {
            case 'd': return digits;
            case 'D': return complement(digits);
            case 'w': return word_characters;
            case 'W': return complement(word_characters);
            case 's': return blanks;
            case 'S': return complement(blanks);
            case 't': return one('\t');
            case 'n': return one('\n');
            case 'v': return one('\v');
            case 'f': return one('\f');
            case 'r': return one('\r');
            case '0': return one(0);
            case 'p': return property(false);
            case 'P': return property(true);
            case 'u': return one(unicode_escape());
            case 'x': {
                const auto value = hex(2);
                if (!value) fail("a broken \\x");
                return one(value.value_or(0));
            }
            case 'c': {
                const char letter = static_cast<char>(peek() | 0x20);
                if (letter < 'a' || letter > 'z') fail("a broken \\c");
                ++at_;
                return one(static_cast<char32_t>(letter - 'a' + 1));
            }
            default:
                if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
                    fail(text("an unknown escape \\", c));
                return one(static_cast<char32_t>(c));
        }
    }

    std::vector<CodePoints> class_atom() {
        if (take("\\")) return take("b") ? std::vector<CodePoints>{{'\b', '\b'}} : escaped();
        const char32_t c = character();
        return {{c, c}};
    }

    std::vector<CodePoints> char_class() {
        const bool negated = take("^");
        std::vector<CodePoints> ranges;
        while (!done() && peek() != ']') {
            std::vector<CodePoints> first = class_atom();
            const bool is_range = peek() == '-' && at_ + 1 < pattern_.size() &&
                                  pattern_[at_ + 1] != ']';
            if (is_range) {
                ++at_;
                const std::vector<CodePoints> last = class_atom();
                if (first.size() != 1 || last.size() != 1 || first[0].first != first[0].last ||
                    last[0].first != last[0].last || last[0].last < first[0].first) {
                    fail("an invalid range");
                    break;
                }
                first[0].last = last[0].last;
            }
            ranges.insert(ranges.end(), first.begin(), first.end());
        }
        if (!take("]")) fail("an open [");
        ranges = normalized(std::move(ranges));
        return negated ? complement(ranges) : ranges;
    }

    std::string_view pattern_;
    std::size_t at_ = 0;
    std::optional<Error> problem_;
};

}  // namespace

Result<Expression> parse_pattern(std::string_view pattern) {
    return PatternParser(pattern).parse();
}

}  // namespace moex
