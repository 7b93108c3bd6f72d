#include "hub/model/jinja_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "hub/model/jinja_lexer.h"
#include "protocol/text.h"

namespace moex::jinja {
namespace {

constexpr std::uint32_t nesting_max = 400;           // of brackets, blocks and unary operators: the parser's own recursion
constexpr std::uint32_t expression_depth_max = 400;  // of trees, chains such as a + b + c included

class Parser {
  public:
    explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

    Body run() {
        Body body = parse_body({});
        for (const auto& [name, line] : called_names_)
            if (!assigned_names_.contains(name)) fail(line, text("the function '", name, "' is not supported"));
        return body;
    }

  private:
    // Counts the parser's own recursion.
    struct Nesting {
        explicit Nesting(Parser& parser) : parser(parser) {
            if (++parser.nesting_ > nesting_max) parser.fail(parser.line(), text("nested over ", nesting_max, " deep"));
        }
        ~Nesting() { --parser.nesting_; }
        Parser& parser;
    };

    [[noreturn]] static void fail(std::uint32_t line, const std::string& message) { throw Failure{ErrorCode::unsupported, text("line ", line, ": ", message)}; }
    const Token& peek(std::size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
    std::uint32_t line() const { return peek().line; }
    const Token& take() {
        const Token& token = peek();
        if (at_ + 1 < tokens_.size()) ++at_;
        return token;
    }
    bool at_symbol(std::string_view symbol, std::size_t ahead = 0) const { return peek(ahead).kind == TokenKind::symbol && peek(ahead).text == symbol; }
    bool at_name(std::string_view name, std::size_t ahead = 0) const { return peek(ahead).kind == TokenKind::name && peek(ahead).text == name; }
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
        if (!take_symbol(symbol)) fail(line(), text("wanted '", symbol, "', found ", describe(peek())));
    }
    std::string expect_name() {
        if (peek().kind != TokenKind::name) fail(line(), text("wanted a name, found ", describe(peek())));
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
    // Gives the node its depth once its children are in place.
    ExpressionPointer finish(ExpressionPointer expression) {
        std::uint32_t depth = 0;
        const auto look = [&](const ExpressionPointer& child) { depth = std::max(depth, child ? child->depth : 0); };
        for (const auto& operand : expression->operands) look(operand);
        for (const auto& argument : expression->arguments.positional) look(argument);
        for (const auto& [name, argument] : expression->arguments.keyword) look(argument);
        look(expression->arguments.spread);
        look(expression->arguments.keyword_spread);
        if (depth >= expression_depth_max) fail(expression->line, text("an expression nested over ", expression_depth_max, " deep"));
        expression->depth = depth + 1;
        return expression;
    }
    ExpressionPointer unary(ExpressionKind kind, std::uint32_t at_line, ExpressionPointer operand) {
        auto node = make(kind, at_line);
        node->operands.push_back(std::move(operand));
        return finish(std::move(node));
    }
    ExpressionPointer binary(ExpressionKind kind, ExpressionPointer left, ExpressionPointer right, std::optional<Operator> op = std::nullopt) {
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

    // ---- statements ----

    // Statements up to a block whose name is in `ends`; that block's "{% name" is taken and its name stored in end_name_.
    Body parse_body(const std::vector<std::string_view>& ends) {
        const Nesting nesting(*this);
        Body body;
        for (;;) {
            const Token& token = peek();
            if (token.kind == TokenKind::end) {
                if (!ends.empty()) fail(token.line, text("'", ends.back(), "' is missing"));
                return body;
            }
            if (token.kind == TokenKind::text) {
                auto statement = begin(StatementKind::text);
                statement->text = take().text;
                body.push_back(std::move(statement));
            } else if (token.kind == TokenKind::print_begin) {
                auto statement = begin(StatementKind::print);
                take();
                statement->expression = parse_tuple(true);
                expect(TokenKind::print_end);
                body.push_back(std::move(statement));
            } else {
                expect(TokenKind::block_begin);
                const std::string name = expect_name();
                if (std::find(ends.begin(), ends.end(), name) != ends.end()) {
                    end_name_ = name;
                    return body;
                }
                body.push_back(parse_block(name));
            }
        }
    }
    Body parse_body_and_end(std::string_view end_name) {
        Body body = parse_body({end_name});
        expect(TokenKind::block_end);
        return body;
    }

    std::unique_ptr<Statement> begin(StatementKind kind) {
        auto statement = std::make_unique<Statement>();
        statement->kind = kind;
        statement->line = line();
        return statement;
    }

    std::unique_ptr<Statement> parse_block(const std::string& name) {
        if (name == "if") return parse_if();
        if (name == "for") return parse_for();
        if (name == "set") return parse_set();
        if (name == "macro") return parse_macro();
        if (name == "call") return parse_call_block();
        if (name == "filter") return parse_filter_block();
        if (name == "with") return parse_with();
        if (name == "generation") {
            auto statement = begin(StatementKind::scope_block);
            expect(TokenKind::block_end);
            statement->body = parse_body_and_end("endgeneration");
            return statement;
        }
        if (name == "break" || name == "continue") {
            if (loop_depth_ == 0) fail(line(), text("'", name, "' outside a loop"));
            auto statement = begin(name == "break" ? StatementKind::break_loop : StatementKind::continue_loop);
            expect(TokenKind::block_end);
            return statement;
        }
        if (name.starts_with("end") || name == "else" || name == "elif") fail(line(), text("'", name, "' without its beginning"));
        fail(line(), text("the tag '", name, "' is not supported"));
    }

    std::unique_ptr<Statement> parse_if() {
        auto statement = begin(StatementKind::branch);
        for (;;) {
            ExpressionPointer condition;
            if (end_name_ != "else" || statement->branches.empty()) condition = parse_tuple(false);
            expect(TokenKind::block_end);
            const bool last = !condition;
            Body body = last ? parse_body({"endif"}) : parse_body({"elif", "else", "endif"});
            statement->branches.emplace_back(std::move(condition), std::move(body));
            if (end_name_ == "endif") break;
        }
        expect(TokenKind::block_end);
        return statement;
    }

    std::unique_ptr<Statement> parse_for() {
        auto statement = begin(StatementKind::loop);
        statement->target = parse_target(false);
        if (!take_name("in")) fail(line(), text("wanted 'in', found ", describe(peek())));
        statement->expression = parse_tuple(false);
        if (take_name("if")) statement->condition = parse_expression();
        if (at_name("recursive")) fail(line(), "recursive loops are not supported");
        expect(TokenKind::block_end);
        ++loop_depth_;
        statement->body = parse_body({"else", "endfor"});
        --loop_depth_;
        if (end_name_ == "else") {
            expect(TokenKind::block_end);
            statement->otherwise = parse_body({"endfor"});
        }
        expect(TokenKind::block_end);
        return statement;
    }

    Target parse_target(bool allow_attribute) {
        Target target;
        const bool parenthesis = take_symbol("(");
        target.names.push_back(expect_name());
        if (allow_attribute && !parenthesis && take_symbol(".")) {
            target.attribute = expect_name();
            return target;
        }
        while (take_symbol(",")) {
            target.unpack = true;
            if (peek().kind != TokenKind::name || at_name("in")) break;
            target.names.push_back(expect_name());
        }
        if (parenthesis) expect_symbol(")");
        for (const std::string& name : target.names) assigned_names_.insert(name);
        return target;
    }

    std::unique_ptr<Statement> parse_set() {
        auto statement = begin(StatementKind::assign);
        statement->target = parse_target(true);
        if (take_symbol("=")) {
            statement->expression = parse_tuple(true);
            expect(TokenKind::block_end);
            return statement;
        }
        statement->kind = StatementKind::assign_block;
        if (statement->target.unpack) fail(line(), text("wanted '=', found ", describe(peek())));
        if (at_symbol("|")) statement->expression = parse_filters(captured());
        expect(TokenKind::block_end);
        const LoopsHidden hidden(*this);
        statement->body = parse_body_and_end("endset");
        return statement;
    }

    // Bodies that are captured cannot break out of a loop around them.
    struct LoopsHidden {
        explicit LoopsHidden(Parser& parser) : parser(parser), before(std::exchange(parser.loop_depth_, 0)) {}
        ~LoopsHidden() { parser.loop_depth_ = before; }
        Parser& parser;
        int before;
    };

    ExpressionPointer captured() {
        auto node = make(ExpressionKind::name, line());
        node->text = captured_text_name;
        return node;
    }

    void parse_parameters(MacroNode& macro) {
        expect_symbol("(");
        while (!at_symbol(")")) {
            if (!macro.parameters.empty()) expect_symbol(",");
            if (at_symbol(")")) break;
            macro.parameters.push_back(expect_name());
            assigned_names_.insert(macro.parameters.back());
            if (take_symbol("="))
                macro.defaults.push_back(parse_expression());
            else if (!macro.defaults.empty())
                fail(line(), "a parameter without a default after one with");
        }
        expect_symbol(")");
    }

    std::unique_ptr<Statement> parse_macro() {
        auto statement = begin(StatementKind::macro);
        statement->macro = std::make_unique<MacroNode>();
        statement->macro->name = expect_name();
        assigned_names_.insert(statement->macro->name);
        assigned_names_.insert("caller");
        parse_parameters(*statement->macro);
        expect(TokenKind::block_end);
        const LoopsHidden hidden(*this);
        statement->macro->body = parse_body_and_end("endmacro");
        return statement;
    }

    std::unique_ptr<Statement> parse_call_block() {
        auto statement = begin(StatementKind::call_block);
        statement->macro = std::make_unique<MacroNode>();
        statement->macro->name = "caller";
        if (at_symbol("(")) parse_parameters(*statement->macro);
        statement->expression = parse_expression();
        if (statement->expression->kind != ExpressionKind::call) fail(statement->line, "a call block needs a call");
        expect(TokenKind::block_end);
        const LoopsHidden hidden(*this);
        statement->macro->body = parse_body_and_end("endcall");
        return statement;
    }

    std::unique_ptr<Statement> parse_filter_block() {
        auto statement = begin(StatementKind::filter_block);
        statement->expression = parse_filters(parse_filter(captured()));
        expect(TokenKind::block_end);
        const LoopsHidden hidden(*this);
        statement->body = parse_body_and_end("endfilter");
        return statement;
    }

    std::unique_ptr<Statement> parse_with() {
        auto statement = begin(StatementKind::with_block);
        while (peek().kind != TokenKind::block_end) {
            if (!statement->assignments.empty()) expect_symbol(",");
            Target target;
            target.names.push_back(expect_name());
            assigned_names_.insert(target.names[0]);
            expect_symbol("=");
            statement->assignments.emplace_back(std::move(target), parse_expression());
        }
        expect(TokenKind::block_end);
        statement->body = parse_body_and_end("endwith");
        return statement;
    }

    // ---- expressions, loosest binding first ----

    // One expression, or several with commas as a tuple.
    ExpressionPointer parse_tuple(bool with_conditional) {
        const std::uint32_t at_line = line();
        ExpressionPointer first = with_conditional ? parse_expression() : parse_or();
        if (!at_symbol(",")) return first;
        auto tuple = make(ExpressionKind::tuple, at_line);
        tuple->operands.push_back(std::move(first));
        while (take_symbol(",")) {
            if (peek().kind == TokenKind::block_end || peek().kind == TokenKind::print_end || at_symbol(")")) break;
            tuple->operands.push_back(with_conditional ? parse_expression() : parse_or());
        }
        return finish(std::move(tuple));
    }

    ExpressionPointer parse_expression() {
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

    ExpressionPointer parse_or() {
        ExpressionPointer left = parse_and();
        while (take_name("or")) left = binary(ExpressionKind::logical_or, std::move(left), parse_and());
        return left;
    }
    ExpressionPointer parse_and() {
        ExpressionPointer left = parse_not();
        while (take_name("and")) left = binary(ExpressionKind::logical_and, std::move(left), parse_not());
        return left;
    }
    ExpressionPointer parse_not() {
        const Nesting nesting(*this);
        const std::uint32_t at_line = line();
        if (take_name("not")) return unary(ExpressionKind::logical_not, at_line, parse_not());
        return parse_comparison();
    }

    std::optional<Operator> take_comparison() {
        static constexpr std::pair<std::string_view, Operator> symbols[] = {{"==", Operator::equal},      {"!=", Operator::not_equal},
                                                                            {"<=", Operator::less_equal}, {">=", Operator::greater_equal},
                                                                            {"<", Operator::less},        {">", Operator::greater}};
        for (const auto& [symbol, op] : symbols)
            if (take_symbol(symbol)) return op;
        if (take_name("in")) return Operator::in;
        if (at_name("not") && at_name("in", 1)) return take(), take(), Operator::not_in;
        return std::nullopt;
    }
    ExpressionPointer parse_comparison() {
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

    ExpressionPointer parse_sum() {
        ExpressionPointer left = parse_concat();
        for (;;) {
            if (take_symbol("+"))
                left = binary(ExpressionKind::binary, std::move(left), parse_concat(), Operator::add);
            else if (take_symbol("-"))
                left = binary(ExpressionKind::binary, std::move(left), parse_concat(), Operator::subtract);
            else
                return left;
        }
    }
    ExpressionPointer parse_concat() {
        ExpressionPointer left = parse_product();
        while (take_symbol("~")) left = binary(ExpressionKind::binary, std::move(left), parse_product(), Operator::concat);
        return left;
    }
    ExpressionPointer parse_product() {
        static constexpr std::pair<std::string_view, Operator> symbols[] = {
            {"*", Operator::multiply}, {"/", Operator::divide}, {"//", Operator::floor_divide}, {"%", Operator::modulo}};
        ExpressionPointer left = parse_power();
        for (;;) {
            const auto found = std::find_if(std::begin(symbols), std::end(symbols), [&](const auto& entry) { return at_symbol(entry.first); });
            if (found == std::end(symbols)) return left;
            take();
            left = binary(ExpressionKind::binary, std::move(left), parse_power(), found->second);
        }
    }
    ExpressionPointer parse_power() {
        ExpressionPointer left = parse_unary(true);
        while (take_symbol("**")) left = binary(ExpressionKind::binary, std::move(left), parse_unary(true), Operator::power);
        return left;
    }
    ExpressionPointer parse_unary(bool with_filters) {
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

    ExpressionPointer parse_primary() {
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
                const auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
                if (error != std::errc()) fail(token.line, text("the number ", token.text, " is too large"));
                return literal(make_integer(value), token.line);
            }
            case TokenKind::floating: {
                double value = 0;
                std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
                return literal(make_float(value), token.line);
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

    ExpressionPointer parse_name(const Token& token) {
        const std::string& name = token.text;
        if (name == "true" || name == "True") return literal(make_bool(true), token.line);
        if (name == "false" || name == "False") return literal(make_bool(false), token.line);
        if (name == "none" || name == "None") return literal(make_none(), token.line);
        static constexpr std::array reserved = {"and", "or", "not", "if", "else", "elif", "in", "is", "for", "import", "include", "lambda"};
        if (std::find(reserved.begin(), reserved.end(), name) != reserved.end()) fail(token.line, text("unexpected '", name, "'"));
        auto node = make(ExpressionKind::name, token.line);
        node->text = name;
        return node;
    }

    ExpressionPointer parse_parenthesis(std::uint32_t at_line) {
        if (take_symbol(")")) return make(ExpressionKind::tuple, at_line);
        ExpressionPointer inner = parse_tuple(true);
        expect_symbol(")");
        return inner;
    }
    ExpressionPointer parse_list(std::uint32_t at_line) {
        auto list = make(ExpressionKind::list, at_line);
        while (!at_symbol("]")) {
            if (!list->operands.empty()) expect_symbol(",");
            if (at_symbol("]")) break;
            list->operands.push_back(parse_expression());
        }
        expect_symbol("]");
        return finish(std::move(list));
    }
    ExpressionPointer parse_dict(std::uint32_t at_line) {
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

    ExpressionPointer parse_postfix(ExpressionPointer node) {
        for (;;) {
            const std::uint32_t at_line = line();
            if (take_symbol(".")) {
                const Token& token = take();
                if (token.kind == TokenKind::integer) {
                    node = binary(ExpressionKind::item, std::move(node), literal(make_integer(std::stoll(token.text.substr(0, 18))), at_line));
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

    ExpressionPointer parse_subscript(ExpressionPointer object, std::uint32_t at_line) {
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

    Arguments parse_arguments() {
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
                if (!arguments.keyword.empty() || arguments.keyword_spread) fail(line(), "a positional argument behind a named one");
                arguments.positional.push_back(parse_expression());
            }
        }
        expect_symbol(")");
        return arguments;
    }

    ExpressionPointer parse_call(ExpressionPointer callee) {
        const std::uint32_t at_line = line();
        if (callee->kind == ExpressionKind::attribute && !is_known_method(callee->text)) fail(at_line, text("the method '", callee->text, "' is not supported"));
        if (callee->kind == ExpressionKind::name && !is_known_function(callee->text)) called_names_.emplace_back(callee->text, at_line);
        auto node = make(ExpressionKind::call, at_line);
        node->operands.push_back(std::move(callee));
        node->arguments = parse_arguments();
        return finish(std::move(node));
    }

    // Behind '|': one filter.
    ExpressionPointer parse_filter(ExpressionPointer operand) {
        const std::uint32_t at_line = line();
        const std::string name = expect_name();
        if (!is_known_filter(name)) fail(at_line, text("the filter '", name, "' is not supported"));
        auto node = make(ExpressionKind::filter, at_line);
        node->text = name;
        node->operands.push_back(std::move(operand));
        if (at_symbol("(")) node->arguments = parse_arguments();
        return finish(std::move(node));
    }

    ExpressionPointer parse_filters(ExpressionPointer node) {
        for (;;) {
            if (take_symbol("|"))
                node = parse_filter(std::move(node));
            else if (take_name("is"))
                node = parse_test(std::move(node));
            else if (at_symbol("(") && (node->kind == ExpressionKind::filter || node->kind == ExpressionKind::test))
                node = parse_call(std::move(node));
            else
                return node;
        }
    }

    ExpressionPointer parse_test(ExpressionPointer operand) {
        const std::uint32_t at_line = line();
        const bool negated = take_name("not");
        // Names of tests that are words elsewhere: none, true, in, ...
        const std::string name = expect_name();
        if (!is_known_test(name)) fail(at_line, text("the test '", name, "' is not supported"));
        auto node = make(ExpressionKind::test, at_line);
        node->text = name;
        node->operands.push_back(std::move(operand));
        const Token& next = peek();
        const bool value_follows = next.kind == TokenKind::string || next.kind == TokenKind::integer || next.kind == TokenKind::floating || at_symbol("[") ||
                                   at_symbol("{") ||
                                   (next.kind == TokenKind::name && !at_name("else") && !at_name("or") && !at_name("and") && !at_name("is") && !at_name("if") &&
                                    !at_name("in") && !at_name("not") && !at_name("recursive"));
        if (at_symbol("("))
            node->arguments = parse_arguments();
        else if (value_follows)
            node->arguments.positional.push_back(parse_postfix(parse_primary()));
        ExpressionPointer test = finish(std::move(node));
        return negated ? unary(ExpressionKind::logical_not, at_line, std::move(test)) : std::move(test);
    }

    std::vector<Token> tokens_;
    std::size_t at_ = 0;
    std::uint32_t nesting_ = 0;
    int loop_depth_ = 0;
    std::string end_name_;
    std::vector<std::pair<std::string, std::uint32_t>> called_names_;
    std::set<std::string> assigned_names_;
};

}  // namespace

Body parse_template(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace moex::jinja
