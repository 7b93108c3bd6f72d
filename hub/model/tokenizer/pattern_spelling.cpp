#include "hub/model/tokenizer/pattern_spelling.h"

#include <algorithm>
#include <array>
#include <vector>

#include "protocol/text.h"

namespace moex {
namespace {

enum class Dialect { pcre2, ecmascript };

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char other_case(char c) { return static_cast<char>(c ^ 0x20); }

// Returns the name of a Unicode property in the target dialect. General categories and binary
// properties keep their meaning. Any other name is a script, which PCRE2 would interpret as script
// extensions. ECMAScript accepts only "=" between the property and its value.
std::string property_name(std::string_view name, Dialect dialect) {
    static constexpr std::array binary = {"Alphabetic", "White_Space", "Lowercase", "Uppercase",
                                          "Emoji",      "Ideographic", "Any",       "ASCII"};
    if (name.size() <= 2 || std::find(binary.begin(), binary.end(), name) != binary.end() ||
        name.find_first_of("=:") != std::string_view::npos) {
        std::string same(name);
        if (dialect == Dialect::ecmascript && same == "L&") return "LC";
        if (dialect == Dialect::ecmascript) std::replace(same.begin(), same.end(), ':', '=');
        return same;
    }
    return text(dialect == Dialect::pcre2 ? "sc:" : "sc=", name);
}

// The spellings of anchors and of "any character" in a target dialect. PCRE2 and ECMAScript write
// or interpret them differently. In Oniguruma a line ends only at \n, and no line begins behind the
// \n that ends the text.
struct Anchors {
    std::string_view line_begin, line_end, text_begin, text_end, last_line_end, any;
};
constexpr Anchors anchors_of(Dialect dialect) {
    if (dialect == Dialect::pcre2) return {"(?m:^)", "(?m:$)", "\\A", "\\z", "\\Z", "."};
    return {R"((?:(?<![^])|(?<=\n)(?=[^])))",
            R"((?![^\n]))",
            R"((?<![^]))",
            R"((?![^]))",
            R"((?=\n?(?![^])))",
            R"([^\n])"};
}

// Rewrites an Oniguruma pattern to the target dialect in one pass.
class Rewriter {
  public:
    Rewriter(std::string_view source, Dialect dialect)
        : source_(source),
          dialect_(dialect),
          anchors_(anchors_of(dialect)) {}

    Result<std::string> run() {
        while (at_ < source_.size()) {
            const char c = source_[at_];
            if (c == '\\') {
                MOEX_TRY(escape(false));
            } else if (c == '[') {
                MOEX_TRY(character_class());
            } else if (c == '(') {
                MOEX_TRY(group());
            } else if (c == ')') {
                if (folds_.empty()) return unsupported("an unbalanced ')'");
                fold_ = folds_.back();
                folds_.pop_back();
                out_ += c, ++at_;
            } else if (c == '^' || c == '$') {  // anchors of a line in Oniguruma's Ruby syntax
                out_ += c == '^' ? anchors_.line_begin : anchors_.line_end, ++at_;
            } else if (c == '.') {
                out_ += anchors_.any, ++at_;
            } else if (to_ecmascript() && (c == ']' || c == '{' || c == '}')) {
                brace_or_bracket();
            } else if (fold_ && is_letter(c)) {
                out_ += text('[', c, other_case(c), ']'), ++at_;
            } else {
                out_ += c, ++at_;
            }
        }

        return std::move(out_);
    }

  private:
    Error unsupported(std::string_view what) const {
        return {ErrorCode::unsupported, text("pre-tokenizer pattern has ", what, " at character ",
                                             at_, ", which is not supported")};
    }

    Status escape(bool in_class) {
        if (at_ + 1 >= source_.size()) return unsupported("a lone backslash");
        const char c = source_[at_ + 1];
        if (c == 's' || c == 'S') {
            out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
        } else if (c == 'd' || c == 'D') {
            out_ += c == 'd' ? "\\p{Nd}" : "\\P{Nd}";
        } else if (c == 'p' || c == 'P') {
            const std::size_t open = at_ + 2, close = source_.find('}', open);
            if (open >= source_.size() || source_[open] != '{' || close == std::string_view::npos)
                return unsupported("a property without braces");

            std::string_view name = source_.substr(open + 1, close - open - 1);
            bool negated = c == 'P';
            if (!name.empty() && name.front() == '^') negated = !negated, name.remove_prefix(1);
            out_ += text('\\', negated ? 'P' : 'p', '{', property_name(name, dialect_), '}');
            at_ = close + 1;

            return {};
        } else if (c == 'u') {
            if (at_ + 6 > source_.size()) return unsupported("a short \\u escape");
            out_ += text(to_ecmascript() ? "\\u{" : "\\x{", source_.substr(at_ + 2, 4), '}');
            at_ += 6;
            return {};
        } else if (to_ecmascript() && source_.substr(at_, 3) == "\\x{") {
            const std::size_t close = source_.find('}', at_);
            if (close == std::string_view::npos) return unsupported("an open \\x escape");
            out_ += text("\\u", source_.substr(at_ + 2, close + 1 - at_ - 2));
            at_ = close + 1;
            return {};
        } else if (c == 'x' || c == 'n' || c == 'r' || c == 't' || c == 'f' || c == 'v' ||
                   c == 'e' || c == 'a') {
            out_ += to_ecmascript() ? ecmascript_escape(c)
                    : c == 'v'      ? std::string("\\x{0b}")
                                    : text('\\', c);
        } else if (!in_class && c == 'A') {
            out_ += anchors_.text_begin;
        } else if (!in_class && (c == 'z' || c == 'Z')) {
            out_ += c == 'z' ? anchors_.text_end : anchors_.last_line_end;
        } else if (is_letter(c) || (c >= '0' && c <= '9')) {
            return unsupported(text("the escape \\", c));
        } else {
            out_ += escaped(c, in_class);
        }

        at_ += 2;
        return {};
    }

    bool to_ecmascript() const { return dialect_ == Dialect::ecmascript; }

    // Returns a character with a backslash if the target dialect needs or accepts it. With the flag
    // "u" ECMAScript accepts a backslash before few characters.
    std::string escaped(char c, bool in_class) const {
        const bool takes_it = !to_ecmascript() || (in_class && c == '-') ||
                              std::string_view("^$\\.*+?()[]{}|/").find(c) !=
                                  std::string_view::npos;
        return takes_it ? text('\\', c) : std::string(1, c);
    }
    std::string ecmascript_escape(char c) const {
        if (c == 'e') return "\\x1b";
        if (c == 'a') return "\\x07";
        return text('\\', c);
    }

    // Copies a brace or a bracket outside a character class. The braces of a quantifier stay
    // unchanged. Other braces and brackets are plain characters, which ECMAScript requires to be
    // escaped.
    void brace_or_bracket() {
        const std::size_t close = source_.find('}', at_);
        if (source_[at_] == '{' && close != std::string_view::npos) {
            const std::string_view inner = source_.substr(at_ + 1, close - at_ - 1);
            const std::size_t comma = inner.find(',');
            const bool quantifier =
                !inner.empty() && comma != 0 &&
                inner.find_first_not_of("0123456789,") == std::string_view::npos &&
                inner.find(',', std::min(comma, inner.size() - 1) + 1) == std::string_view::npos;
            if (quantifier) {
                out_ += source_.substr(at_, close + 1 - at_), at_ = close + 1;
                return;
            }
        }
        out_ += text('\\', source_[at_]), ++at_;
    }

    Status character_class() {
        out_ += '[', ++at_;
        if (at_ < source_.size() && source_[at_] == '^') out_ += '^', ++at_;
        std::string folded;
        for (bool first = true; at_ < source_.size(); first = false) {
            const char c = source_[at_];
            if (c == ']' && !first) {
                out_ += folded + ']';
                ++at_;
                return {};
            }

            if (c == '[') return unsupported("a nested class");
            if (c == ']' && to_ecmascript()) {
                out_ += "\\]", ++at_;
                continue;
            }
            if (c == '&' && source_.substr(at_, 2) == "&&")
                return unsupported("a class intersection");

            if (c == '\\') {
                MOEX_TRY(escape(true));
                continue;
            }

            const bool range = at_ + 2 < source_.size() && source_[at_ + 1] == '-' &&
                               source_[at_ + 2] != ']' && source_[at_ + 2] != '\\';
            if (fold_ && is_letter(c)) {
                folded += other_case(c);
                if (range) {
                    if (!is_letter(source_[at_ + 2]))
                        return unsupported("a mixed range in a case-insensitive class");
                    folded += text('-', other_case(source_[at_ + 2]));
                }
            }

            out_ += c, ++at_;
            if (range) out_ += text('-', source_[at_ + 1]), at_ += 2;
        }

        return unsupported("an open class");
    }

    Status group() {
        folds_.push_back(fold_);
        if (folds_.size() > 200) return unsupported("groups nested over 200 deep");

        const std::string_view rest = source_.substr(at_);
        if (to_ecmascript() && rest.starts_with("(?>")) return unsupported("an atomic group");
        for (const std::string_view prefix : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
            if (rest.starts_with(prefix)) {
                out_ += prefix, at_ += prefix.size();
                return {};
            }
        }

        if (rest.starts_with("(?i:")) {
            fold_ = true;
            out_ += "(?:", at_ += 4;
            return {};
        }

        if (rest.starts_with("(?")) return unsupported("a group option");
        out_ += '(', ++at_;
        return {};
    }

    std::string_view source_;
    Dialect dialect_;
    Anchors anchors_;
    std::size_t at_ = 0;
    std::string out_;
    bool fold_ = false;
    std::vector<bool> folds_;
};

}  // namespace

Result<std::string> pcre2_spelling(std::string_view oniguruma) {
    return Rewriter(oniguruma, Dialect::pcre2).run();
}
Result<std::string> ecmascript_spelling(std::string_view oniguruma) {
    return Rewriter(oniguruma, Dialect::ecmascript).run();
}

}  // namespace moex
