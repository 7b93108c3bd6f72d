#include "hub/model/jinja/lexer.h"

#include <algorithm>

#include "hub/model/jinja/value.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex::jinja {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// Replaces CRLF and CR by LF, and drops one newline at the end of the template.
std::string normalize_newlines(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (source[i] != '\r') {
            out += source[i];
        } else {
            out += '\n';
            if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
        }
    }

    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
}

class Lexer {
  public:
    explicit Lexer(std::string_view source) : source_(normalize_newlines(utf8_repair(source))) {}

    std::vector<Token> run() {
        while (at_ < source_.size()) lex_text();
        push(TokenKind::end, {});
        return std::move(tokens_);
    }

  private:
    [[noreturn]] void fail(const std::string& message) const {
        throw Failure{ErrorCode::unsupported, text("line ", line_, ": ", message)};
    }
    bool ahead(std::string_view what) const {
        return std::string_view(source_).substr(at_, what.size()) == what;
    }
    void push(TokenKind kind, std::string value) {
        tokens_.push_back({kind, std::move(value), line_});
    }
    void advance(std::size_t num_bytes) {
        line_ += static_cast<std::uint32_t>(
            std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                       source_.begin() + static_cast<std::ptrdiff_t>(at_ + num_bytes), '\n'));
        at_ += num_bytes;
    }
    void skip_spaces() {
        std::size_t end = at_;
        while (end < source_.size() && is_space(source_[end])) ++end;
        advance(end - at_);
    }

    // Reads plain text up to the next tag, then reads the tag.
    void lex_text() {
        std::size_t open = at_;
        while ((open = source_.find('{', open)) != std::string::npos) {
            const char next = open + 1 < source_.size() ? source_[open + 1] : '\0';
            if (next == '{' || next == '%' || next == '#') break;
            ++open;
        }

        const bool last = open == std::string::npos;
        if (last) open = source_.size();
        const char mark = last ? '\0' : source_[open + 1];
        const char control = open + 2 < source_.size() ? source_[open + 2] : '\0';

        std::size_t end = open;
        if (!last && control == '-') {
            while (end > at_ && is_space(source_[end - 1])) --end;
        } else if (!last && mark != '{' && control != '+') {
            // Apply lstrip_blocks: remove blanks between the start of the line and a block tag or
            // comment.
            std::size_t blank = open;
            while (blank > at_ && (source_[blank - 1] == ' ' || source_[blank - 1] == '\t'))
                --blank;
            if (blank > at_ ? source_[blank - 1] == '\n' : at_line_start()) end = blank;
        }

        if (end > at_) push(TokenKind::text, source_.substr(at_, end - at_));
        advance(open - at_);
        if (last) return;

        if (mark == '#')
            lex_comment();
        else if (mark == '%')
            lex_block(control);
        else
            lex_print(control);
    }

    bool at_line_start() const { return at_ == 0 || source_[at_ - 1] == '\n'; }

    // Skips white space after a closing tag: all white space if the tag has a '-', otherwise one
    // newline (trim_blocks).
    void after_close(bool strip, bool trim_newline) {
        if (strip)
            skip_spaces();
        else if (trim_newline && at_ < source_.size() && source_[at_] == '\n')
            advance(1);
    }

    void lex_comment() {
        const std::size_t close = source_.find("#}", at_ + 2);
        if (close == std::string::npos) fail("a comment is not closed");
        const char control = close > at_ + 2 ? source_[close - 1] : '\0';
        advance(close + 2 - at_);
        after_close(control == '-', control != '+');
    }

    void lex_block(char control) {
        if (lex_raw(control)) return;
        push(TokenKind::block_begin, {});
        advance(control == '-' || control == '+' ? 3 : 2);
        lex_inside("%}", TokenKind::block_end, true);
    }

    void lex_print(char control) {
        push(TokenKind::print_begin, {});
        advance(control == '-' ? 3 : 2);
        lex_inside("}}", TokenKind::print_end, false);
    }

    // Reads {% raw %} ... {% endraw %} without parsing the text inside.
    bool lex_raw(char control) {
        std::size_t at = at_ + (control == '-' || control == '+' ? 3 : 2);
        const auto skip = [&] {
            while (at < source_.size() && is_space(source_[at])) ++at;
        };

        skip();
        if (source_.compare(at, 3, "raw") != 0) return false;

        at += 3;
        skip();
        const bool strip_after = at < source_.size() && source_[at] == '-';
        if (strip_after) ++at;
        if (source_.compare(at, 2, "%}") != 0) return false;

        advance(at + 2 - at_);
        after_close(strip_after, true);
        for (std::size_t open = at_; (open = source_.find("{%", open)) != std::string::npos;
             ++open) {
            at = open + 2;
            const char before = at < source_.size() ? source_[at] : '\0';
            if (before == '-' || before == '+') ++at;
            skip();
            if (source_.compare(at, 6, "endraw") != 0) continue;

            at += 6;
            skip();
            const bool strip = at < source_.size() && source_[at] == '-';
            if (strip) ++at;
            if (source_.compare(at, 2, "%}") != 0) continue;

            std::size_t end = open;
            if (before == '-')
                while (end > at_ && is_space(source_[end - 1])) --end;
            if (end > at_) push(TokenKind::text, source_.substr(at_, end - at_));
            advance(at + 2 - at_);
            after_close(strip, true);

            return true;
        }

        fail("raw is not closed");
    }

    // Reads the tokens of an expression up to the closing tag `close`. Inside brackets the
    // characters of `close` do not end the expression.
    void lex_inside(std::string_view close, TokenKind close_kind, bool trim_newline) {
        std::string brackets;
        for (;;) {
            skip_spaces();
            if (at_ >= source_.size()) fail(text("'", close, "' is missing"));

            if (brackets.empty()) {
                const bool strip = source_[at_] == '-' &&
                                   std::string_view(source_).substr(at_ + 1, 2) == close;
                const bool keep = source_[at_] == '+' && trim_newline &&
                                  std::string_view(source_).substr(at_ + 1, 2) == close;

                if (strip || keep || ahead(close)) {
                    push(close_kind, {});
                    advance(strip || keep ? 3 : 2);
                    after_close(strip, trim_newline && !keep);
                    return;
                }
            }

            const char c = source_[at_];
            if (is_name_start(c)) {
                std::size_t end = at_;
                while (end < source_.size() && is_name_part(source_[end])) ++end;
                push(TokenKind::name, source_.substr(at_, end - at_));
                advance(end - at_);
            } else if (is_digit(c)) {
                lex_number();
            } else if (c == '\'' || c == '"') {
                lex_string(c);
            } else {
                lex_symbol(brackets);
            }
        }
    }

    // Reads a number with a base prefix, like 0x1f, 0o17, 0b101. The text of the token is the
    // number in decimal digits.
    bool lex_based_number() {
        const char mark = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20)
                                                   : ' ';
        const unsigned base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
        if (source_[at_] != '0' || base == 0) return false;

        std::uint64_t value = 0;
        std::size_t end = at_ + 2, num_digits = 0;
        for (; end < source_.size() && (is_name_part(source_[end])); ++end) {
            if (source_[end] == '_') continue;
            const char c = source_[end];
            const unsigned digit = is_digit(c) ? static_cast<unsigned>(c - '0')
                                               : static_cast<unsigned>((c | 0x20) - 'a') + 10;
            if (digit >= base) fail("a number runs into a name");
            if (value > (INT64_MAX - digit) / base) fail("a number of more than 64 bits");
            value = value * base + digit;
            ++num_digits;
        }

        if (num_digits == 0) fail("a number without digits");
        push(TokenKind::integer, text(value));
        advance(end - at_);
        return true;
    }

    void lex_number() {
        if (lex_based_number()) return;
        std::size_t end = at_;
        std::string digits;
        const auto take = [&] {
            while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) {
                if (source_[end] != '_') digits += source_[end];
                ++end;
            }
        };

        take();
        bool floating = false;
        const bool after_dot = !tokens_.empty() && tokens_.back().kind == TokenKind::symbol &&
                               tokens_.back().text == ".";

        if (!after_dot && end + 1 < source_.size() && source_[end] == '.' &&
            is_digit(source_[end + 1])) {
            floating = true;
            digits += '.', ++end;
            take();
        }

        if (!after_dot && end + 1 < source_.size() &&
            (source_[end] == 'e' || source_[end] == 'E')) {
            const bool sign = source_[end + 1] == '-' || source_[end + 1] == '+';
            if (end + 1 + sign < source_.size() && is_digit(source_[end + 1 + sign])) {
                floating = true;
                digits += source_.substr(end, 1 + sign), end += 1 + sign;
                take();
            }
        }

        if (end < source_.size() && is_name_start(source_[end])) fail("a number runs into a name");
        if (digits.size() > (floating ? 60u : 19u))
            fail(text("the number ", digits.substr(0, 24), "... is too long"));

        push(floating ? TokenKind::floating : TokenKind::integer, digits);
        advance(end - at_);
    }

    void lex_string(char quote) {
        std::string value;
        std::size_t end = at_ + 1;
        const auto hex_escape = [&](std::size_t num_digits) {
            char32_t c = 0;
            for (std::size_t i = 0; i < num_digits; ++i) {
                const char d = end + i < source_.size() ? source_[end + i] : '\0';
                if (!is_digit(d) && !(d >= 'a' && d <= 'f') && !(d >= 'A' && d <= 'F'))
                    fail("a broken escape in a string");
                c = c * 16 + static_cast<char32_t>(is_digit(d) ? d - '0' : (d | 0x20) - 'a' + 10);
            }

            if (c > 0x10FFFF) fail("an escape beyond U+10FFFF in a string");
            utf8_append(value, c >= 0xD800 && c <= 0xDFFF ? U'\uFFFD' : c);
            end += num_digits;
        };

        for (;;) {
            if (end >= source_.size()) fail("a string is not closed");
            const char c = source_[end++];
            if (c == quote) break;

            if (c != '\\') {
                value += c;
                continue;
            }

            if (end >= source_.size()) fail("a string is not closed");
            const char escaped = source_[end++];
            switch (escaped) {
                case 'n': value += '\n'; break;
                case 't': value += '\t'; break;
                case 'r': value += '\r'; break;
                case 'b': value += '\b'; break;
                case 'f': value += '\f'; break;
                case 'v': value += '\v'; break;
                case 'a': value += '\a'; break;
                case '0': value += '\0'; break;
                case '\\':
                case '\'':
                case '"': value += escaped; break;
                case '\n': break;
                case 'x': hex_escape(2); break;
                case 'u': hex_escape(4); break;
                case 'U': hex_escape(8); break;
                // an unknown escape stays as written, as in Python
                default: value += '\\', value += escaped;
            }
        }

        push(TokenKind::string, std::move(value));
        advance(end - at_);
    }

    void lex_symbol(std::string& brackets) {
        static constexpr std::string_view two[] = {"==", "!=", "<=", ">=", "//", "**"};
        for (const std::string_view symbol : two) {
            if (ahead(symbol)) {
                push(TokenKind::symbol, std::string(symbol));
                advance(2);
                return;
            }
        }

        const char c = source_[at_];
        if (std::string_view("+-*/%~<>=()[]{}.,:|").find(c) == std::string_view::npos)
            fail(text("unexpected '", source_.substr(at_, utf8_step(source_, at_).num_bytes), "'"));

        if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
        if (c == ')' || c == ']' || c == '}') {
            if (brackets.empty() || brackets.back() != c) fail(text("unexpected '", c, "'"));
            brackets.pop_back();
        }

        push(TokenKind::symbol, std::string(1, c));
        advance(1);
    }

    std::string source_;
    std::size_t at_ = 0;
    std::uint32_t line_ = 1;
    std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace moex::jinja
