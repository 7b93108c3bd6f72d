#include "hub/api/grammar/gbnf.h"

#include <algorithm>
#include <map>
#include <string>

#include "hub/api/grammar/expression.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {
namespace {

using ExpressionKind = Expression::Kind;

constexpr std::uint32_t gbnf_depth_max = 64, gbnf_count_max = 10'000, parts_max = 20'000,
                        rules_max = 2000;
constexpr std::size_t source_bytes_max = 256 << 10;

struct Rule {
    std::string name;
    std::optional<Expression> body;
};

class GbnfParser {
  public:
    GbnfParser(std::string_view source, const FindToken& find_token, std::size_t vocab_size)
        : source_(source),
          find_token_(find_token),
          vocab_size_(vocab_size) {}

    Result<std::vector<Rule>> parse() {
        if (source_.size() > source_bytes_max)
            fail(text("more than ", source_bytes_max >> 10, " KiB"));
        if (!utf8_is_valid(source_)) fail("bytes that are not UTF-8");
        skip(true);
        while (!done()) {
            const std::string name = word();
            if (name.empty()) fail("no rule's name");
            skip(false);
            if (!take("::=")) fail("no ::=");
            skip(true);
            Expression body = choice(0);
            if (problem_) break;
            std::optional<Expression>& known = rules_[index_of(name)].body;
            if (known) fail(text("two rules ", name));
            known = std::move(body);
            skip(true);
        }
        for (const Rule& rule : rules_)
            if (!problem_ && !rule.body) fail(text("no rule ", rule.name));
        if (!problem_ && !indices_.contains("root")) fail("no rule root");
        if (problem_) return *problem_;
        return std::move(rules_);
    }
    std::uint32_t root() const { return indices_.at("root"); }

  private:
    bool done() const { return problem_ || at_ >= source_.size(); }
    char peek(std::size_t ahead = 0) const {
        return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
    }
    bool take(std::string_view words) {
        if (problem_ || !source_.substr(at_).starts_with(words)) return false;
        at_ += words.size();
        return true;
    }
    void fail(std::string_view what) {
        if (problem_) return;
        const auto line = 1 + std::count(source_.begin(),
                                         source_.begin() + static_cast<std::ptrdiff_t>(
                                                               std::min(at_, source_.size())),
                                         '\n');
        problem_ = Error{ErrorCode::invalid_argument, text("line ", line, " has ", what)};
    }

    // Skips blanks and comments; skips line ends, too, where a rule may continue on the next line.
    void skip(bool line_ends) {
        while (at_ < source_.size()) {
            if (peek() == '#')
                while (at_ < source_.size() && peek() != '\n') ++at_;
            const char c = peek();
            if (c != ' ' && c != '\t' && !(line_ends && (c == '\n' || c == '\r'))) return;
            ++at_;
        }
    }

    std::string word() {
        const std::size_t begin = at_;
        const auto fits = [](char c) {
            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                   c == '-' || c == '_';
        };
        while (at_ < source_.size() && fits(peek())) ++at_;
        return std::string(source_.substr(begin, at_ - begin));
    }

    std::uint32_t index_of(const std::string& name) {
        const auto [found, is_new] = indices_.emplace(name,
                                                      static_cast<std::uint32_t>(rules_.size()));
        if (is_new) rules_.push_back({name, std::nullopt});
        if (rules_.size() > rules_max) fail(text("more than ", rules_max, " rules"));
        return found->second;
    }

    Expression choice(std::uint32_t depth) {
        if (depth > gbnf_depth_max) fail("too many groups inside each other");
        std::vector<Expression> parts;
        for (;;) {
            parts.push_back(sequence(depth));
            const std::size_t end = at_;
            skip(true);
            if (take("|")) {
                skip(true);
                continue;
            }
            if (depth == 0) at_ = end;
            break;
        }
        if (parts.size() == 1) return std::move(parts.front());
        return Expression::of(ExpressionKind::choice, std::move(parts));
    }

    Expression sequence(std::uint32_t depth) {
        std::vector<Expression> parts;
        for (;;) {
            skip(depth > 0);
            const char c = peek();
            if (done() || c == '|' || c == ')' || c == '\n' || c == '\r') break;
            Expression one = atom(depth);
            one = quantified(std::move(one), depth);
            if (++num_parts_ > parts_max) fail(text("more than ", parts_max, " parts"));
            if (problem_) break;
            parts.push_back(std::move(one));
        }
        if (parts.size() == 1) return std::move(parts.front());
        return Expression::of(ExpressionKind::sequence, std::move(parts));
    }

    // Reads the operators after an element. Blanks may precede an operator.
    Expression quantified(Expression one, std::uint32_t depth) {
        for (;;) {
            const std::size_t end = at_;
            skip(depth > 0);
            if (take("*")) {
                one = Expression::repeat(std::move(one), 0, unbounded);
            } else if (take("+")) {
                one = Expression::repeat(std::move(one), 1, unbounded);
            } else if (take("?")) {
                one = Expression::repeat(std::move(one), 0, 1);
            } else if (take("{")) {
                const std::uint32_t min = number();
                std::uint32_t max = min;
                skip(false);
                if (take(",")) {
                    skip(false);
                    max = peek() == '}' ? unbounded : number();
                }
                if (!take("}") || max < min) fail("an invalid count in braces");
                one = Expression::repeat(std::move(one), min, max);
            } else {
                at_ = end;
                return one;
            }
        }
    }

    std::uint32_t number() {
        skip(false);
        std::uint32_t value = 0;
        while (peek() >= '0' && peek() <= '9' && value <= gbnf_count_max)
            value = value * 10 + static_cast<std::uint32_t>(source_[at_++] - '0');
        if (value > gbnf_count_max) fail(text("a count above ", gbnf_count_max));
        return value;
    }

    Expression atom(std::uint32_t depth) {
        if (take("\"")) return literal();
        if (take("[")) return Expression::characters(char_class());
        if (take(".")) return Expression::characters({{0, code_point_max}});
        if (take("<")) return token();
        if (take("(")) {
            Expression inside = choice(depth + 1);
            skip(true);
            if (!take(")")) fail("an open (");
            return inside;
        }
        const std::string name = word();
        if (name.empty()) fail(text("an unexpected ", peek()));
        return {.kind = ExpressionKind::rule, .index = index_of(name)};
    }

    char32_t escaped() {
        if (!take("\\")) {
            const Utf8Step step = utf8_step(source_, at_);
            at_ += step.num_bytes;
            return step.code_point;
        }
        const char c = peek();
        ++at_;
        switch (c) {
            case 'n': return '\n';
            case 't': return '\t';
            case 'r': return '\r';
            case 'x': return hex(2);
            case 'u': return hex(4);
            case 'U': return hex(8);
            case '\\':
            case '"':
            case '[':
            case ']':
            case '-':
            case '^': return static_cast<char32_t>(c);
            default: fail(text("an unknown escape \\", c)); return 0;
        }
    }

    char32_t hex(std::size_t num_digits) {
        char32_t value = 0;
        for (; num_digits > 0; --num_digits, ++at_) {
            const char c = peek();
            const char lower = static_cast<char>(c | 0x20);
            if (c >= '0' && c <= '9')
                value = value * 16 + static_cast<char32_t>(c - '0');
            else if (lower >= 'a' && lower <= 'f')
                value = value * 16 + static_cast<char32_t>(lower - 'a' + 10);
            else
                fail("a broken escape");
        }
        if (value > code_point_max) fail("a character beyond Unicode");
        return std::min(value, code_point_max);
    }

    Expression literal() {
        std::vector<Expression> parts;
        while (!done() && peek() != '"' && peek() != '\n') {
            const char32_t c = escaped();
            parts.push_back(Expression::characters({{c, c}}));
            if (++num_parts_ > source_bytes_max) fail("too much text");
        }
        if (!take("\"")) fail("an open \"");
        return Expression::of(ExpressionKind::sequence, std::move(parts));
    }

    std::vector<CodePoints> char_class() {
        const bool negated = take("^");
        std::vector<CodePoints> ranges;
        while (!done() && peek() != ']') {
            CodePoints range{escaped(), 0};
            range.last = range.first;
            if (peek() == '-' && peek(1) != ']') {
                ++at_;
                range.last = escaped();
                if (range.last < range.first) fail("an invalid range");
            }
            ranges.push_back(range);
        }
        if (!take("]")) fail("an open [");
        ranges = normalized(std::move(ranges));
        return negated ? complement(ranges) : ranges;
    }

    // Reads the name of a token, after its opening "<".
    Expression token() {
        if (take("[")) {
            const std::size_t begin = at_;
            std::uint64_t id = 0;
            while (peek() >= '0' && peek() <= '9' && id < vocab_size_)
                id = id * 10 + static_cast<std::uint64_t>(source_[at_++] - '0');
            if (at_ == begin || !take("]>") || id >= vocab_size_) fail("an unknown token number");
            return {.kind = ExpressionKind::token, .index = static_cast<std::uint32_t>(id)};
        }
        const std::size_t end = source_.find('>', at_);
        const auto id = end == std::string_view::npos
                            ? std::nullopt
                            : find_token_(source_.substr(at_ - 1, end + 2 - at_));
        if (!id) {
            fail("an unknown token");
            return {};
        }
        at_ = end + 1;
        return {.kind = ExpressionKind::token, .index = *id};
    }

    std::string_view source_;
    const FindToken& find_token_;
    std::size_t vocab_size_;
    std::size_t at_ = 0, num_parts_ = 0;
    std::vector<Rule> rules_;
    std::map<std::string, std::uint32_t> indices_;
    std::optional<Error> problem_;
};

// Turns the rules of a GBNF text into grammar nodes. Rules without tokens and recursion become
// automata; other rules become graphs of nodes.
class GbnfBuilder {
  public:
    GbnfBuilder(std::vector<GrammarNode>& nodes, std::vector<Rule> rules)
        : nodes_(nodes),
          rules_(std::move(rules)),
          plain_(rules_.size(), Plain::unknown) {}

    Result<NodeId> build(std::uint32_t root) {
        for (std::uint32_t i = 0; i < rules_.size(); ++i) is_plain_rule(i);
        return rule_node(root);
    }

  private:
    enum class Plain : std::uint8_t { unknown, asked, no, yes };

    bool is_plain_rule(std::uint32_t index) {
        if (plain_[index] == Plain::unknown) {
            plain_[index] = Plain::asked;
            const bool plain = is_plain(*rules_[index].body);
            plain_[index] = plain ? Plain::yes : Plain::no;
        }
        return plain_[index] == Plain::yes;  // Plain::asked here means that the rule is recursive
    }

    bool is_plain(const Expression& e) {
        if (e.kind == ExpressionKind::token) return false;
        if (e.kind == ExpressionKind::rule) return is_plain_rule(e.index);
        bool plain = true;
        for (const Expression& part : e.parts) plain = is_plain(part) && plain;
        return plain;
    }

    // Copies the expression, and replaces the names of rules by the bodies of these rules. Returns
    // false if the copy gets too large.
    bool inlined(const Expression& e, Expression& out, std::uint32_t& budget) const {
        if (budget == 0) return false;
        --budget;
        if (e.kind == ExpressionKind::rule) return inlined(*rules_[e.index].body, out, budget);
        out.kind = e.kind;
        out.ranges = e.ranges;
        out.min = e.min;
        out.max = e.max;
        for (const Expression& part : e.parts)
            if (!inlined(part, out.parts.emplace_back(), budget)) return false;
        return true;
    }

    NodeId add(GrammarNode node) {
        nodes_.push_back(std::move(node));
        return static_cast<NodeId>(nodes_.size() - 1);
    }

    Result<NodeId> rule_node(std::uint32_t index) {
        if (const auto known = known_.find(index); known != known_.end()) return known->second;
        const NodeId id = add({});  // a node of kind choice, whose children are added below
        known_.emplace(index, id);
        MOEX_ASSIGN(body, node_of(*rules_[index].body));
        nodes_[id].children = {body};
        return id;
    }

    Result<NodeId> node_of(const Expression& e) {
        constexpr std::uint32_t inlined_max = 20'000;
        if (nodes_.size() > parts_max) return Error{ErrorCode::unsupported, "too large"};
        if (is_plain(e)) {
            Expression whole;
            std::uint32_t budget = inlined_max;
            if (inlined(e, whole, budget)) {
                const auto texts = automaton_of(whole);
                if (texts.ok()) return add({.kind = GrammarNode::Kind::text, .texts = *texts});
            }
        }
        switch (e.kind) {
            case ExpressionKind::rule: return rule_node(e.index);
            case ExpressionKind::token:
                return add({.kind = GrammarNode::Kind::token, .token = e.index});
            case ExpressionKind::characters: {
                MOEX_ASSIGN(texts, automaton_of(e));
                return add({.kind = GrammarNode::Kind::text, .texts = texts});
            }
            default: break;
        }
        GrammarNode node{.kind = e.kind == ExpressionKind::choice   ? GrammarNode::Kind::choice
                                 : e.kind == ExpressionKind::repeat ? GrammarNode::Kind::repeat
                                                                    : GrammarNode::Kind::sequence};
        node.min = e.min;
        node.max = e.max;
        for (const Expression& part : e.parts) {
            MOEX_ASSIGN(child, node_of(part));
            node.children.push_back(child);
        }
        return add(std::move(node));
    }

    std::vector<GrammarNode>& nodes_;
    std::vector<Rule> rules_;
    std::vector<Plain> plain_;
    std::map<std::uint32_t, NodeId> known_;
};

}  // namespace

Result<NodeId> add_gbnf(std::vector<GrammarNode>& nodes, std::string_view source,
                        const FindToken& find_token, std::size_t vocab_size) {
    GbnfParser parser(source, find_token, vocab_size);
    MOEX_ASSIGN(rules, parser.parse());
    const std::uint32_t root = parser.root();
    return GbnfBuilder(nodes, std::move(rules)).build(root);
}

}  // namespace moex
