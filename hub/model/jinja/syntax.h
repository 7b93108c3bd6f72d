// The syntax tree of a template. The parser builds the tree once; after that it is read-only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/model/jinja/value.h"

namespace moex::jinja {

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

enum class Operator {
    add,
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    concat,
    equal,
    not_equal,
    less,
    less_equal,
    greater,
    greater_equal,
    in,
    not_in
};

struct Arguments {
    std::vector<ExpressionPointer> positional;
    std::vector<std::pair<std::string, ExpressionPointer>> keyword;
    ExpressionPointer spread;          // *list
    ExpressionPointer keyword_spread;  // **mapping
};

enum class ExpressionKind {
    literal,      // value
    name,         // text
    list,         // operands
    tuple,        // operands
    dict,         // operands alternate: key, value, key, value, ...
    attribute,    // operands[0].text
    item,         // operands[0][operands[1]]
    slice,        // operands[0][operands[1] : operands[2] : operands[3]]; bounds may be null
    call,         // operands[0](arguments)
    filter,       // operands[0] | text(arguments)
    test,         // operands[0] is text(arguments)
    negate,       // -operands[0]
    plus,         // +operands[0]
    logical_not,  // operands[0]
    logical_and,  // operands[0], operands[1]
    logical_or,
    binary,       // operands[0] op operands[1]
    comparison,   // a < b < c: operands[0] operators[0] operands[1] operators[1] ...
    conditional,  // operands[0] if operands[1] else operands[2]; operands[2] may be null
};

struct Expression {
    ExpressionKind kind = ExpressionKind::literal;
    std::uint32_t line = 0;
    std::uint32_t depth = 1;
    std::string text;
    Value value;
    std::vector<ExpressionPointer> operands;
    std::vector<Operator> operators;
    Arguments arguments;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

// The target of an assignment or a loop: one name, several names, or an attribute of a namespace.
struct Target {
    std::vector<std::string> names;
    bool unpack = false;
    std::string attribute;  // if not empty, the target is names[0].attribute
};

struct MacroNode {
    std::string name;
    std::vector<std::string> parameters;
    std::vector<ExpressionPointer> defaults;  // default values of the last parameters
    Body body;
};

enum class StatementKind {
    text,          // text, as written
    print,         // expression
    branch,        // uses `branches`; the last branch may have no condition
    loop,          // uses target, expression, condition, body, otherwise
    assign,        // target, expression
    assign_block,  // uses target, body, and `expression` for filters if present
    macro,         // macro
    call_block,    // uses expression (a call) and macro (its parameters, and the body of caller())
    filter_block,  // uses body, and `expression` for the filters
    with_block,    // assignments, body
    scope_block,   // body (generation)
    break_loop,
    continue_loop,
};

struct Statement {
    StatementKind kind = StatementKind::text;
    std::uint32_t line = 0;
    std::string text;
    ExpressionPointer expression;
    ExpressionPointer condition;
    Target target;
    Body body;
    Body otherwise;
    bool recursive = false;  // loop only: the body may call loop(items)
    std::vector<std::pair<ExpressionPointer, Body>> branches;
    std::vector<std::pair<Target, ExpressionPointer>> assignments;
    std::unique_ptr<MacroNode> macro;
};

// The name under which the filters of a set block or a filter block find the captured text.
inline constexpr std::string_view captured_text_name = "(captured)";

}  // namespace moex::jinja
