#define PCRE2_CODE_UNIT_WIDTH 8
#include "hub/model/tokenizer/split_pattern.h"

#include <algorithm>
#include <array>

#include <pcre2.h>

#include "hub/model/tokenizer/utf8.h"

namespace moex {
namespace {

// steps of one match; the patterns of real models need a few per byte
constexpr std::uint32_t match_limit = 10'000'000;
constexpr std::uint32_t depth_limit = 100'000;
constexpr std::uint32_t heap_limit_kib = 64 * 1024;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char other_case(char c) { return static_cast<char>(c ^ 0x20); }

// General categories and binary properties keep their meaning; anything else is a script, which
// PCRE2 would read as script extensions.
std::string property_name(std::string_view name) {
    static constexpr std::array binary = {"Alphabetic", "White_Space", "Lowercase", "Uppercase",
                                          "Emoji",      "Ideographic", "Any",       "ASCII"};
    if (name.size() <= 2 || std::find(binary.begin(), binary.end(), name) != binary.end() ||
        name.find_first_of("=:") != std::string_view::npos)
        return std::string(name);
    return text("sc:", name);
}

// Walks an Oniguruma pattern once and writes PCRE2's.
class Rewriter {
  public:
    explicit Rewriter(std::string_view source) : source_(source) {}

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
            } else if (c == '^' || c == '$') {  // line anchors in Oniguruma's Ruby syntax
                out_ += text("(?m:", c, ")"), ++at_;
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
            out_ += text('\\', negated ? 'P' : 'p', '{', property_name(name), '}');
            at_ = close + 1;

            return {};
        } else if (c == 'u') {
            if (at_ + 6 > source_.size()) return unsupported("a short \\u escape");
            out_ += text("\\x{", source_.substr(at_ + 2, 4), '}');
            at_ += 6;
            return {};
        } else if (c == 'x' || c == 'n' || c == 'r' || c == 't' || c == 'f' || c == 'v' ||
                   c == 'e' || c == 'a') {
            out_ += c == 'v' ? std::string("\\x{0b}") : text('\\', c);
        } else if (!in_class && (c == 'A' || c == 'z' || c == 'Z')) {
            out_ += text('\\', c);
        } else if (is_letter(c) || (c >= '0' && c <= '9')) {
            return unsupported(text("the escape \\", c));
        } else {
            out_ += text('\\', c);
        }

        at_ += 2;
        return {};
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
    std::size_t at_ = 0;
    std::string out_;
    bool fold_ = false;
    std::vector<bool> folds_;
};

struct MatchDataFree {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct SplitPattern::State {
    std::string literal;  // used when `code` is null
    pcre2_code* code = nullptr;
    pcre2_match_context* context = nullptr;

    ~State() {
        pcre2_match_context_free(context);
        pcre2_code_free(code);
    }
};

SplitPattern::SplitPattern() : state_(std::make_unique<State>()) {}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

Result<std::string> pcre2_spelling(std::string_view oniguruma) { return Rewriter(oniguruma).run(); }

Result<SplitPattern> SplitPattern::compile_literal(std::string_view literal) {
    if (literal.empty())
        return Error{ErrorCode::unsupported, "pre-tokenizer pattern is an empty string"};
    SplitPattern pattern;
    pattern.state_->literal = literal;
    return pattern;
}

Result<SplitPattern> SplitPattern::compile_regex(std::string_view oniguruma) {
    if (!utf8_is_valid(oniguruma))
        return Error{ErrorCode::bad_file, "pre-tokenizer pattern is not UTF-8"};

    MOEX_ASSIGN(spelling, pcre2_spelling(oniguruma));
    SplitPattern pattern;
    pcre2_compile_context* compile = pcre2_compile_context_create(nullptr);
    pcre2_set_newline(compile, PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE offset = 0;
    pattern.state_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelling.data()),
                                         spelling.size(), PCRE2_UTF | PCRE2_UCP, &code, &offset,
                                         compile);

    pcre2_compile_context_free(compile);
    if (pattern.state_->code == nullptr) {
        PCRE2_UCHAR message[160] = {};
        pcre2_get_error_message(code, message, sizeof message);
        return Error{ErrorCode::unsupported,
                     text("pre-tokenizer pattern: ", reinterpret_cast<const char*>(message), " at ",
                          offset, " of ", spelling.substr(0, 200))};
    }

    // without JIT the interpreter gives the same matches
    pcre2_jit_compile(pattern.state_->code, PCRE2_JIT_COMPLETE);
    pattern.state_->context = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(pattern.state_->context, match_limit);
    pcre2_set_depth_limit(pattern.state_->context, depth_limit);
    pcre2_set_heap_limit(pattern.state_->context, heap_limit_kib);

    return pattern;
}

void SplitPattern::find(std::string_view subject, std::vector<Range>& matches) const {
    matches.clear();
    if (state_->code == nullptr) {
        for (std::size_t at = 0; (at = subject.find(state_->literal, at)) != std::string_view::npos;
             at += state_->literal.size())
            matches.emplace_back(at, at + state_->literal.size());
        return;
    }

    const std::unique_ptr<pcre2_match_data, MatchDataFree> data(
        pcre2_match_data_create_from_pattern(state_->code, nullptr));
    const auto* bytes = reinterpret_cast<PCRE2_SPTR>(subject.data());
    for (std::size_t at = 0; at < subject.size();) {
        int found = pcre2_match(state_->code, bytes, subject.size(), at, PCRE2_NO_UTF_CHECK,
                                data.get(), state_->context);
        if (found == PCRE2_ERROR_JIT_STACKLIMIT)
            found = pcre2_match(state_->code, bytes, subject.size(), at,
                                PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), state_->context);

        // no match, or a limit: the rest is one gap, so a hostile pattern costs its limit once
        if (found < 0) return;

        const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
        if (range[1] > range[0]) matches.emplace_back(range[0], range[1]);
        at = range[1] > at ? range[1] : at + utf8_step(subject, at).num_bytes;
    }
}

}  // namespace moex
