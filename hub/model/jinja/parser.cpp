#include "hub/model/jinja/parser.h"

#include "hub/model/jinja/expression_parser.h"

namespace moex::jinja {
namespace {

class Parser : ExpressionParser {
  public:
    using ExpressionParser::ExpressionParser;

    Body run() {
        Body body = parse_body({});
        return body;
    }

  private:
    // Parses statements up to a block tag whose name is in `ends`. Consumes "{% name" of that tag
    // and stores its name in end_name_.
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
            auto statement = begin(name == "break" ? StatementKind::break_loop
                                                   : StatementKind::continue_loop);
            expect(TokenKind::block_end);
            return statement;
        }

        if (name.starts_with("end") || name == "else" || name == "elif")
            fail(line(), text("'", name, "' without its beginning"));

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
        statement->recursive = take_name("recursive");
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

    // Hides the enclosing loops from the parser while the object exists. The parser makes such an
    // object before it parses the body of a capture, because a `break` in that body cannot leave
    // those loops.
    struct LoopsHidden {
        explicit LoopsHidden(Parser& parser)
            : parser(parser),
              before(std::exchange(parser.loop_depth_, 0)) {}
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
        if (statement->expression->kind != ExpressionKind::call)
            fail(statement->line, "a call block needs a call");

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
            expect_symbol("=");
            statement->assignments.emplace_back(std::move(target), parse_expression());
        }

        expect(TokenKind::block_end);
        statement->body = parse_body_and_end("endwith");
        return statement;
    }

    int loop_depth_ = 0;
    std::string end_name_;
};

}  // namespace

Body parse_template(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace moex::jinja
