#include "hub/model/jinja/expression_parser.h"

#include <array>
#include <charconv>

#include "hub/model/jinja/known_names.h"
#include "hub/model/jinja/number_text.h"

namespace moex::jinja {

ExpressionPointer ExpressionParser::parse_tuple(bool with_conditional) {
    const std::uint32_t at_line = line();
    ExpressionPointer first = with_conditional ? parse_expression() : parse_or();
    if (!at_symbol(",")) return first;

    auto tuple = make(ExpressionKind::tuple, at_line);
    tuple->operands.push_back(std::move(first));
    while (take_symbol(",")) {
        if (peek().kind == TokenKind::block_end || peek().kind == TokenKind::print_end ||
            at_symbol(")"))
            break;
        tuple->operands.push_back(with_conditional ? parse_expression() : parse_or());
    }

    return finish(std::move(tuple));
}

ExpressionPointer ExpressionParser::parse_expression() {
    const Nesting nesting(*this);
    ExpressionPointer value = parse_or();
    while (at_name("if")) {
        const std::uint32_t at_line = take().line;
        auto node = make(ExpressionKind::conditional, at_line);
        node->operands.push_back(std::move(value));
        node->operands.push_back(parse_or());
        node->operands.push_back(take_name("else") ? parse_expression() : nullptr);
        value = finish(std::move(node));
    }

    return value;
}

ExpressionPointer ExpressionParser::parse_or() {
    ExpressionPointer left = parse_and();
    while (take_name("or")) left = binary(ExpressionKind::logical_or, std::move(left), parse_and());
    return left;
}
ExpressionPointer ExpressionParser::parse_and() {
    ExpressionPointer left = parse_not();
    while (take_name("and"))
        left = binary(ExpressionKind::logical_and, std::move(left), parse_not());
    return left;
}
ExpressionPointer ExpressionParser::parse_not() {
    const Nesting nesting(*this);
    const std::uint32_t at_line = line();
    if (take_name("not")) return unary(ExpressionKind::logical_not, at_line, parse_not());
    return parse_comparison();
}

std::optional<Operator> ExpressionParser::take_comparison() {
    static constexpr std::pair<std::string_view, Operator> symbols[] = {
        {"==", Operator::equal},         {"!=", Operator::not_equal}, {"<=", Operator::less_equal},
        {">=", Operator::greater_equal}, {"<", Operator::less},       {">", Operator::greater}};
    for (const auto& [symbol, op] : symbols)
        if (take_symbol(symbol)) return op;
    if (take_name("in")) return Operator::in;
    if (at_name("not") && at_name("in", 1)) return take(), take(), Operator::not_in;
    return std::nullopt;
}
ExpressionPointer ExpressionParser::parse_comparison() {
    ExpressionPointer left = parse_sum();
    std::optional<Operator> op = take_comparison();
    if (!op) return left;

    auto node = make(ExpressionKind::comparison, left->line);
    node->operands.push_back(std::move(left));
    for (; op; op = take_comparison()) {
        node->operators.push_back(*op);
        node->operands.push_back(parse_sum());
    }

    return finish(std::move(node));
}

ExpressionPointer ExpressionParser::parse_sum() {
    ExpressionPointer left = parse_concat();
    for (;;) {
        if (take_symbol("+"))
            left = binary(ExpressionKind::binary, std::move(left), parse_concat(), Operator::add);
        else if (take_symbol("-"))
            left = binary(ExpressionKind::binary, std::move(left), parse_concat(),
                          Operator::subtract);
        else
            return left;
    }
}
ExpressionPointer ExpressionParser::parse_concat() {
    ExpressionPointer left = parse_product();
    while (take_symbol("~"))
        left = binary(ExpressionKind::binary, std::move(left), parse_product(), Operator::concat);
    return left;
}
ExpressionPointer ExpressionParser::parse_product() {
    static constexpr std::pair<std::string_view, Operator> symbols[] = {
        {"*", Operator::multiply},
        {"/", Operator::divide},
        {"//", Operator::floor_divide},
        {"%", Operator::modulo}};

    ExpressionPointer left = parse_power();
    for (;;) {
        const auto found = std::find_if(std::begin(symbols), std::end(symbols),
                                        [&](const auto& entry) { return at_symbol(entry.first); });
        if (found == std::end(symbols)) return left;
        take();
        left = binary(ExpressionKind::binary, std::move(left), parse_power(), found->second);
    }
}
ExpressionPointer ExpressionParser::parse_power() {
    ExpressionPointer left = parse_unary(true);
    while (take_symbol("**"))
        left = binary(ExpressionKind::binary, std::move(left), parse_unary(true), Operator::power);
    return left;
}
ExpressionPointer ExpressionParser::parse_unary(bool with_filters) {
    const Nesting nesting(*this);
    const std::uint32_t at_line = line();
    ExpressionPointer node;
    if (take_symbol("-"))
        node = unary(ExpressionKind::negate, at_line, parse_unary(false));
    else if (take_symbol("+"))
        node = unary(ExpressionKind::plus, at_line, parse_unary(false));
    else
        node = parse_primary();

    node = parse_postfix(std::move(node));
    return with_filters ? parse_filters(std::move(node)) : std::move(node);
}

ExpressionPointer ExpressionParser::parse_primary() {
    const Nesting nesting(*this);
    const Token token = take();
    switch (token.kind) {
        case TokenKind::name: return parse_name(token);
        case TokenKind::string: {
            std::string value = token.text;
            while (peek().kind == TokenKind::string) value += take().text;
            return literal(make_text(std::move(value)), token.line);
        }
        case TokenKind::integer: {
            std::int64_t value = 0;
            const auto [end, error] = std::from_chars(token.text.data(),
                                                      token.text.data() + token.text.size(), value);
            if (error != std::errc())
                fail(token.line, text("the number ", token.text, " is too large"));
            return literal(make_integer(value), token.line);
        }
        case TokenKind::floating: {
            return literal(make_float(read_double(token.text).value_or(0)), token.line);
        }
        case TokenKind::symbol:
            if (token.text == "(") return parse_parenthesis(token.line);
            if (token.text == "[") return parse_list(token.line);
            if (token.text == "{") return parse_dict(token.line);
            break;
        default: break;
    }

    fail(token.line, text("unexpected ", describe(token)));
}

ExpressionPointer ExpressionParser::parse_name(const Token& token) {
    const std::string& name = token.text;
    if (name == "true" || name == "True") return literal(make_bool(true), token.line);
    if (name == "false" || name == "False") return literal(make_bool(false), token.line);
    if (name == "none" || name == "None") return literal(make_none(), token.line);

    static constexpr std::array reserved = {"and", "or", "not", "if",     "else",    "elif",
                                            "in",  "is", "for", "import", "include", "lambda"};
    if (std::find(reserved.begin(), reserved.end(), name) != reserved.end())
        fail(token.line, text("unexpected '", name, "'"));

    auto node = make(ExpressionKind::name, token.line);
    node->text = name;
    return node;
}

ExpressionPointer ExpressionParser::parse_parenthesis(std::uint32_t at_line) {
    if (take_symbol(")")) return make(ExpressionKind::tuple, at_line);
    ExpressionPointer inner = parse_tuple(true);
    expect_symbol(")");
    return inner;
}
ExpressionPointer ExpressionParser::parse_list(std::uint32_t at_line) {
    auto list = make(ExpressionKind::list, at_line);
    while (!at_symbol("]")) {
        if (!list->operands.empty()) expect_symbol(",");
        if (at_symbol("]")) break;
        list->operands.push_back(parse_expression());
    }
    expect_symbol("]");
    return finish(std::move(list));
}
ExpressionPointer ExpressionParser::parse_dict(std::uint32_t at_line) {
    auto dict = make(ExpressionKind::dict, at_line);
    while (!at_symbol("}")) {
        if (!dict->operands.empty()) expect_symbol(",");
        if (at_symbol("}")) break;
        dict->operands.push_back(parse_expression());
        expect_symbol(":");
        dict->operands.push_back(parse_expression());
    }

    expect_symbol("}");
    return finish(std::move(dict));
}

ExpressionPointer ExpressionParser::parse_postfix(ExpressionPointer node) {
    for (;;) {
        const std::uint32_t at_line = line();
        if (take_symbol(".")) {
            const Token& token = take();
            if (token.kind == TokenKind::integer) {
                node = binary(ExpressionKind::item, std::move(node),
                              literal(make_integer(std::stoll(token.text.substr(0, 18))), at_line));
            } else if (token.kind == TokenKind::name) {
                node = unary(ExpressionKind::attribute, at_line, std::move(node));
                node->text = token.text;
            } else {
                fail(at_line, text("wanted a name behind '.', found ", describe(token)));
            }
        } else if (take_symbol("[")) {
            node = parse_subscript(std::move(node), at_line);
        } else if (at_symbol("(")) {
            node = parse_call(std::move(node));
        } else {
            return node;
        }
    }
}

ExpressionPointer ExpressionParser::parse_subscript(ExpressionPointer object,
                                                    std::uint32_t at_line) {
    std::array<ExpressionPointer, 3> parts;
    std::size_t part = 0;
    bool slice = false;
    while (!at_symbol("]")) {
        if (take_symbol(":")) {
            slice = true;
            if (++part > 2) fail(at_line, "a slice with more than three parts");
        } else if (parts[part]) {
            fail(line(), text("wanted ']', found ", describe(peek())));
        } else {
            parts[part] = parse_expression();
        }
    }

    expect_symbol("]");
    if (!slice) {
        if (!parts[0]) fail(at_line, "an empty subscript");
        return binary(ExpressionKind::item, std::move(object), std::move(parts[0]));
    }

    auto node = make(ExpressionKind::slice, at_line);
    node->operands.push_back(std::move(object));
    for (auto& index : parts) node->operands.push_back(std::move(index));
    return finish(std::move(node));
}

Arguments ExpressionParser::parse_arguments() {
    Arguments arguments;
    expect_symbol("(");
    for (bool first = true; !at_symbol(")"); first = false) {
        if (!first) expect_symbol(",");
        if (at_symbol(")")) break;

        if (take_symbol("**")) {
            arguments.keyword_spread = parse_expression();
        } else if (take_symbol("*")) {
            arguments.spread = parse_expression();
        } else if (peek().kind == TokenKind::name && at_symbol("=", 1)) {
            std::string name = take().text;
            take();
            arguments.keyword.emplace_back(std::move(name), parse_expression());
        } else {
            if (!arguments.keyword.empty() || arguments.keyword_spread)
                fail(line(), "a positional argument behind a named one");
            arguments.positional.push_back(parse_expression());
        }
    }

    expect_symbol(")");
    return arguments;
}

ExpressionPointer ExpressionParser::parse_call(ExpressionPointer callee) {
    const std::uint32_t at_line = line();
    auto node = make(ExpressionKind::call, at_line);
    node->operands.push_back(std::move(callee));
    node->arguments = parse_arguments();

    return finish(std::move(node));
}

ExpressionPointer ExpressionParser::parse_filter(ExpressionPointer operand) {
    const std::uint32_t at_line = line();
    const std::string name = expect_name();
    auto node = make(ExpressionKind::filter, at_line);
    node->text = name;
    node->operands.push_back(std::move(operand));
    if (at_symbol("(")) node->arguments = parse_arguments();
    return finish(std::move(node));
}

ExpressionPointer ExpressionParser::parse_filters(ExpressionPointer node) {
    for (;;) {
        if (take_symbol("|"))
            node = parse_filter(std::move(node));
        else if (take_name("is"))
            node = parse_test(std::move(node));
        else if (at_symbol("(") &&
                 (node->kind == ExpressionKind::filter || node->kind == ExpressionKind::test))
            node = parse_call(std::move(node));
        else
            return node;
    }
}

ExpressionPointer ExpressionParser::parse_test(ExpressionPointer operand) {
    const std::uint32_t at_line = line();
    const bool negated = take_name("not");

    // The name of a test may be a word that is a keyword in other places: none, true, in, ...
    const std::string name = expect_name();

    auto node = make(ExpressionKind::test, at_line);
    node->text = name;
    node->operands.push_back(std::move(operand));
    const Token& next = peek();
    const bool value_follows = next.kind == TokenKind::string || next.kind == TokenKind::integer ||
                               next.kind == TokenKind::floating || at_symbol("[") ||
                               at_symbol("{") ||
                               (next.kind == TokenKind::name && !at_name("else") &&
                                !at_name("or") && !at_name("and") && !at_name("is") &&
                                !at_name("if") && !at_name("in") && !at_name("not") &&
                                !at_name("recursive"));

    if (at_symbol("("))
        node->arguments = parse_arguments();
    else if (value_follows)
        node->arguments.positional.push_back(parse_postfix(parse_primary()));

    ExpressionPointer test = finish(std::move(node));
    return negated ? unary(ExpressionKind::logical_not, at_line, std::move(test)) : std::move(test);
}

}  // namespace moex::jinja
