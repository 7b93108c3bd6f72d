// ExpressionParser parses the expressions of a template from its tokens, beginning with the
// operators that bind loosest. parser.cpp adds the statements.
#pragma once

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/model/jinja/lexer.h"
#include "hub/model/jinja/syntax.h"
#include "protocol/text.h"

namespace moex::jinja {

// Parser of expressions. Its functions throw a Failure, whose message names the line of the
// template.
class ExpressionParser {
  public:
    explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  protected:
    // limit for nested brackets, blocks and unary operators, because the parser recurses for each
    // level
    static constexpr std::uint32_t nesting_max = 400;
    // limit for the depth of the syntax tree, in which a chain such as a + b + c is deep as well
    static constexpr std::uint32_t expression_depth_max = 400;

    // Counts one level of the parser's recursion while the object exists.
    struct Nesting {
        explicit Nesting(ExpressionParser& parser) : parser(parser) {
            if (++parser.nesting_ > nesting_max)
                parser.fail(parser.line(), text("nested over ", nesting_max, " deep"));
        }
        ~Nesting() { --parser.nesting_; }
        ExpressionParser& parser;
    };

    [[noreturn]] static void fail(std::uint32_t line, const std::string& message) {
        throw Failure{ErrorCode::unsupported, text("line ", line, ": ", message)};
    }
    const Token& peek(std::size_t ahead = 0) const {
        return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
    }
    std::uint32_t line() const { return peek().line; }
    const Token& take() {
        const Token& token = peek();
        if (at_ + 1 < tokens_.size()) ++at_;
        return token;
    }
    bool at_symbol(std::string_view symbol, std::size_t ahead = 0) const {
        return peek(ahead).kind == TokenKind::symbol && peek(ahead).text == symbol;
    }
    bool at_name(std::string_view name, std::size_t ahead = 0) const {
        return peek(ahead).kind == TokenKind::name && peek(ahead).text == name;
    }
    bool take_symbol(std::string_view symbol) { return at_symbol(symbol) && (take(), true); }
    bool take_name(std::string_view name) { return at_name(name) && (take(), true); }
    std::string describe(const Token& token) const {
        switch (token.kind) {
            case TokenKind::end: return "the end of the template";
            case TokenKind::block_end: return "'%}'";
            case TokenKind::print_end: return "'}}'";
            case TokenKind::string: return "a string";
            default: return text("'", token.text, "'");
        }
    }
    void expect_symbol(std::string_view symbol) {
        if (!take_symbol(symbol))
            fail(line(), text("wanted '", symbol, "', found ", describe(peek())));
    }
    std::string expect_name() {
        if (peek().kind != TokenKind::name)
            fail(line(), text("wanted a name, found ", describe(peek())));
        return take().text;
    }
    void expect(TokenKind kind) {
        if (peek().kind != kind) fail(line(), text("unexpected ", describe(peek())));
        take();
    }

    ExpressionPointer make(ExpressionKind kind, std::uint32_t at_line) {
        auto expression = std::make_unique<Expression>();
        expression->kind = kind;
        expression->line = at_line;
        return expression;
    }
    // Computes the depth of a syntax tree node from its children, which must be complete, and
    // returns the node.
    ExpressionPointer finish(ExpressionPointer expression) {
        std::uint32_t depth = 0;
        const auto look = [&](const ExpressionPointer& child) {
            depth = std::max(depth, child ? child->depth : 0);
        };

        for (const auto& operand : expression->operands) look(operand);
        for (const auto& argument : expression->arguments.positional) look(argument);
        for (const auto& [name, argument] : expression->arguments.keyword) look(argument);
        look(expression->arguments.spread);
        look(expression->arguments.keyword_spread);
        if (depth >= expression_depth_max)
            fail(expression->line,
                 text("an expression nested over ", expression_depth_max, " deep"));

        expression->depth = depth + 1;
        return expression;
    }
    ExpressionPointer unary(ExpressionKind kind, std::uint32_t at_line, ExpressionPointer operand) {
        auto node = make(kind, at_line);
        node->operands.push_back(std::move(operand));
        return finish(std::move(node));
    }
    ExpressionPointer binary(ExpressionKind kind, ExpressionPointer left, ExpressionPointer right,
                             std::optional<Operator> op = std::nullopt) {
        auto node = make(kind, left->line);
        node->operands.push_back(std::move(left));
        node->operands.push_back(std::move(right));
        if (op) node->operators.push_back(*op);
        return finish(std::move(node));
    }
    ExpressionPointer literal(Value value, std::uint32_t at_line) {
        auto node = make(ExpressionKind::literal, at_line);
        node->value = std::move(value);
        return node;
    }

    // Parses one expression. Several expressions separated by commas become a tuple.
    ExpressionPointer parse_tuple(bool with_conditional);
    ExpressionPointer parse_expression();
    ExpressionPointer parse_or();
    ExpressionPointer parse_and();
    ExpressionPointer parse_not();
    std::optional<Operator> take_comparison();
    ExpressionPointer parse_comparison();
    ExpressionPointer parse_sum();
    ExpressionPointer parse_concat();
    ExpressionPointer parse_product();
    ExpressionPointer parse_power();
    ExpressionPointer parse_unary(bool with_filters);
    ExpressionPointer parse_primary();
    ExpressionPointer parse_name(const Token& token);
    ExpressionPointer parse_parenthesis(std::uint32_t at_line);
    ExpressionPointer parse_list(std::uint32_t at_line);
    ExpressionPointer parse_dict(std::uint32_t at_line);
    ExpressionPointer parse_postfix(ExpressionPointer node);
    ExpressionPointer parse_subscript(ExpressionPointer object, std::uint32_t at_line);
    Arguments parse_arguments();
    ExpressionPointer parse_call(ExpressionPointer callee);
    // Parses one filter and its arguments. The '|' before the filter was already read.
    ExpressionPointer parse_filter(ExpressionPointer operand);
    ExpressionPointer parse_filters(ExpressionPointer node);
    ExpressionPointer parse_test(ExpressionPointer operand);

    std::vector<Token> tokens_;
    std::size_t at_ = 0;
    std::uint32_t nesting_ = 0;
};

}  // namespace moex::jinja
