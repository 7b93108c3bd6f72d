#include "hub/model/jinja/renderer.h"

#include <algorithm>

#include "hub/model/jinja/known_names.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex::jinja {

void fail(const std::string& message) { throw Failure{ErrorCode::invalid_argument, message}; }

const MarkedText& text_argument(const Value& value, std::string_view what) {
    if (!value.text()) fail(text(what, " wants a string, got ", kind_name(value)));
    return *value.text();
}

std::int64_t integer_argument(const Value& value, std::string_view what) {
    if (!value.is_integer() && !value.is_bool())
        fail(text(what, " wants an integer, got ", kind_name(value)));
    return value.integer();
}

std::vector<std::size_t> code_point_starts(std::string_view bytes) {
    std::vector<std::size_t> starts;
    for (std::size_t at = 0; at < bytes.size(); at += utf8_step(bytes, at).num_bytes)
        starts.push_back(at);
    starts.push_back(bytes.size());
    return starts;
}

void Scope::set(std::string_view name, Value value) {
    for (auto& [existing, slot] : variables) {
        if (existing == name) {
            slot = std::move(value);
            return;
        }
    }
    variables.emplace_back(name, std::move(value));
}

const Value* CallArguments::find(std::size_t position, std::string_view name) const {
    if (position < positional.size()) return &positional[position];
    for (const auto& [key, value] : keyword)
        if (key == name) return &value;
    return nullptr;
}

Renderer::Depth::Depth(Renderer& renderer) : renderer(renderer) {
    // Evaluating one expression takes several levels of recursion, so this bound is higher than the
    // bound for blocks and calls.
    if (renderer.depth_ >= 10 * renderer.limits_.depth_max)
        fail(text("nested over ", 10 * renderer.limits_.depth_max, " deep"));
    ++renderer.depth_;
}

Renderer::Renderer(const TemplateLimits& limits) : limits_(limits) {}

Renderer::~Renderer() {
    // Namespaces may refer to each other. Clear them one by one, so that their destructors do not
    // call each other recursively.
    for (auto& name_space : namespaces_) {
        name_space->attributes.clear();
        name_space->items.clear();
    }
}

void Renderer::set_global(std::string name, Value value) {
    globals_.insert_or_assign(std::move(name), std::move(value));
}

void Renderer::charge(std::uint64_t steps) {
    steps_ += std::min(steps, limits_.steps_max + 1);
    if (steps_ > limits_.steps_max)
        throw Failure{ErrorCode::overloaded,
                      text("the template takes more than ", limits_.steps_max, " steps")};
}

MarkedText Renderer::run(const Body& body) {
    MarkedText out;
    try {
        Scope top(nullptr);
        run_body(body, top, out);
        top.variables.clear();
    } catch (Failure& failure) {
        failure.message = text("line ", line_, ": ", failure.message);
        throw;
    }

    return out;
}

void Renderer::emit(MarkedText& out, const MarkedText& text) {
    charge_bytes(text.size());
    if (out.size() + text.size() > limits_.output_bytes_max)
        throw Failure{ErrorCode::overloaded, moex::text("the template writes more than ",
                                                        limits_.output_bytes_max, " bytes")};
    out.append(text);
}

std::unique_ptr<Scope> Renderer::new_scope(Scope* parent) {
    return std::make_unique<Scope>(parent);
}
void Renderer::drop_scope(std::unique_ptr<Scope> scope) {
    if (scope->captured) kept_scopes_.push_back(std::move(scope));
}

Renderer::Flow Renderer::run_body(const Body& body, Scope& scope, MarkedText& out) {
    const Depth depth(*this);
    for (const auto& statement : body) {
        const Flow flow = run_statement(*statement, scope, out);
        if (flow != Flow::next) return flow;
    }
    return Flow::next;
}

Renderer::Flow Renderer::run_inner(const Body& body, Scope& scope, MarkedText& out) {
    auto inner = new_scope(&scope);
    const Flow flow = run_body(body, *inner, out);
    drop_scope(std::move(inner));
    return flow;
}

Renderer::Flow Renderer::run_statement(const Statement& statement, Scope& scope, MarkedText& out) {
    charge(1);
    line_ = statement.line;
    switch (statement.kind) {
        case StatementKind::text: emit(out, MarkedText(statement.text)); break;
        case StatementKind::print: emit(out, print(evaluate(*statement.expression, scope))); break;
        case StatementKind::branch: return run_branch(statement, scope, out);
        case StatementKind::loop: return run_loop(statement, scope, out);
        case StatementKind::assign:
            assign(statement.target, evaluate(*statement.expression, scope), scope);
            break;
        case StatementKind::assign_block:
            assign(statement.target, run_captured(statement, scope), scope);
            break;
        case StatementKind::filter_block: emit(out, print(run_captured(statement, scope))); break;
        case StatementKind::macro: {
            auto callable = std::make_shared<Callable>();
            callable->name = statement.macro->name;
            callable->macro = statement.macro.get();
            callable->scope = &scope;
            for (Scope* outer = &scope; outer; outer = outer->parent) outer->captured = true;
            scope.set(statement.macro->name,
                      {std::shared_ptr<const Callable>(std::move(callable))});
            break;
        }
        case StatementKind::call_block: run_call_block(statement, scope, out); break;
        case StatementKind::with_block: {
            auto inner = new_scope(&scope);
            for (const auto& [target, expression] : statement.assignments)
                assign(target, evaluate(*expression, scope), *inner);
            const Flow flow = run_body(statement.body, *inner, out);
            drop_scope(std::move(inner));
            return flow;
        }
        case StatementKind::scope_block: return run_inner(statement.body, scope, out);
        case StatementKind::break_loop: return Flow::break_loop;
        case StatementKind::continue_loop: return Flow::continue_loop;
    }

    return Flow::next;
}

Renderer::Flow Renderer::run_branch(const Statement& statement, Scope& scope, MarkedText& out) {
    for (const auto& [condition, body] : statement.branches)
        if (!condition || truth(evaluate(*condition, scope))) return run_body(body, scope, out);
    return Flow::next;
}

Renderer::Flow Renderer::run_loop(const Statement& statement, Scope& scope, MarkedText& out) {
    return run_loop_over(statement, items_of(evaluate(*statement.expression, scope)), scope, out);
}

Renderer::Flow Renderer::run_loop_over(const Statement& statement, ListPointer items, Scope& scope,
                                       MarkedText& out) {
    if (statement.condition) {
        List chosen;
        for (const Value& item : items->items) {
            auto inner = new_scope(&scope);
            assign(statement.target, item, *inner);
            if (truth(evaluate(*statement.condition, *inner))) chosen.items.push_back(item);
            drop_scope(std::move(inner));
        }
        items = std::make_shared<const List>(std::move(chosen));
    }

    if (items->items.empty())
        return statement.otherwise.empty() ? Flow::next
                                           : run_inner(statement.otherwise, scope, out);

    const auto loop = std::make_shared<Loop>();
    loop->items = items;
    loop->depth = ++loop_depth_;
    if (statement.recursive) {
        loop->statement = &statement;
        loop->scope = &scope;
    }

    Flow flow = Flow::next;
    auto inner = new_scope(&scope);
    for (; loop->index < items->items.size() && flow != Flow::break_loop; ++loop->index) {
        charge(1);
        // Start each iteration of the loop with new variables, as in Jinja.
        if (inner->captured) {
            drop_scope(std::move(inner));
            inner = new_scope(&scope);
        }

        inner->variables.clear();
        inner->set("loop", {loop});
        assign(statement.target, items->items[loop->index], *inner);
        flow = run_body(statement.body, *inner, out);
    }

    drop_scope(std::move(inner));

    // The template may keep a reference to the loop object, but the loop's scope ends here.
    loop->statement = nullptr;
    loop->scope = nullptr;
    --loop_depth_;

    return Flow::next;
}

// Evaluates loop(items) inside a recursive loop: renders the body of the loop for `items`, and
// returns the text.
Value Renderer::call_loop(const Loop& loop, const CallArguments& arguments) {
    const Depth depth(*this);
    if (!loop.statement) fail("loop() may only be called inside a loop that is marked recursive");
    if (arguments.positional.size() != 1) fail("loop() wants one argument: the items to loop over");

    MarkedText out;
    run_loop_over(*loop.statement, items_of(arguments.positional[0]), *loop.scope, out);
    return make_text(std::move(out));
}

Value Renderer::run_captured(const Statement& statement, Scope& scope) {
    auto inner = new_scope(&scope);
    MarkedText captured;
    run_body(statement.body, *inner, captured);

    Value value = make_text(std::move(captured));
    if (statement.expression) {
        inner->set(captured_text_name, value);
        value = evaluate(*statement.expression, *inner);
    }

    drop_scope(std::move(inner));
    return value;
}

void Renderer::run_call_block(const Statement& statement, Scope& scope, MarkedText& out) {
    auto body = std::make_shared<Callable>();
    body->name = statement.macro->name;
    body->macro = statement.macro.get();
    body->scope = &scope;
    for (Scope* outer = &scope; outer; outer = outer->parent) outer->captured = true;
    const Value caller{std::shared_ptr<const Callable>(std::move(body))};
    emit(out, print(evaluate_call(*statement.expression, scope, &caller)));
}

void Renderer::assign(const Target& target, const Value& value, Scope& scope) {
    if (!target.attribute.empty()) {
        Expression name;
        name.text = target.names[0];
        Namespace* name_space = evaluate_name(name, scope).name_space();
        if (!name_space || name_space->kind != Namespace::Kind::plain)
            fail(text("cannot set ", target.names[0], ".", target.attribute, ": not a namespace"));
        name_space->attributes.insert_or_assign(target.attribute, value);
        return;
    }

    if (!target.unpack) {
        scope.set(target.names[0], value);
        return;
    }

    const ListPointer items = items_of(value);
    if (items->items.size() != target.names.size())
        fail(text("cannot unpack ", items->items.size(), " values into ", target.names.size(),
                  " names"));

    for (std::size_t i = 0; i < target.names.size(); ++i)
        scope.set(target.names[i], items->items[i]);
}

Value Renderer::call_macro(const Callable& callable, CallArguments arguments, const Value* caller) {
    const MacroNode& macro = *callable.macro;
    auto scope = new_scope(callable.scope);
    if (caller) scope->set("caller", *caller);
    const std::size_t num_parameters = macro.parameters.size(),
                      num_required = num_parameters - macro.defaults.size();

    for (std::size_t i = 0; i < num_parameters; ++i) {
        const std::string& name = macro.parameters[i];
        if (i < arguments.positional.size()) {
            scope->set(name, arguments.positional[i]);
            continue;
        }

        const auto named = std::find_if(arguments.keyword.begin(), arguments.keyword.end(),
                                        [&](const auto& entry) { return entry.first == name; });
        if (named != arguments.keyword.end()) {
            scope->set(name, std::move(named->second));
            arguments.keyword.erase(named);
        } else if (i >= num_required) {
            scope->set(name, evaluate(*macro.defaults[i - num_required], *scope));
        } else {
            scope->set(name, make_undefined(name));
        }
    }

    std::vector<Value> rest;
    for (std::size_t i = num_parameters; i < arguments.positional.size(); ++i)
        rest.push_back(arguments.positional[i]);
    scope->set("varargs", make_list(std::move(rest), true));
    Dict named;
    for (auto& [name, value] : arguments.keyword) named.set(make_text(name), std::move(value));
    scope->set("kwargs", make_dict(std::move(named)));

    MarkedText out;
    run_body(macro.body, *scope, out);
    drop_scope(std::move(scope));
    return make_text(std::move(out));
}

// ---- expressions ----

Value Renderer::evaluate(const Expression& expression, Scope& scope) {
    const Depth depth(*this);
    charge(1);
    line_ = expression.line ? expression.line : line_;
    const auto operand = [&](std::size_t i) { return evaluate(*expression.operands[i], scope); };

    switch (expression.kind) {
        case ExpressionKind::literal: return expression.value;
        case ExpressionKind::name: return evaluate_name(expression, scope);
        case ExpressionKind::list:
        case ExpressionKind::tuple: {
            std::vector<Value> items;
            for (std::size_t i = 0; i < expression.operands.size(); ++i)
                items.push_back(operand(i));
            return make_list(std::move(items), expression.kind == ExpressionKind::tuple);
        }
        case ExpressionKind::dict: return evaluate_dict(expression, scope);
        case ExpressionKind::attribute: return attribute_of(operand(0), expression.text);
        case ExpressionKind::item: {
            const Value object = operand(0);
            return item_of(object, operand(1));
        }
        case ExpressionKind::slice: return evaluate_slice(expression, scope);
        case ExpressionKind::call: return evaluate_call(expression, scope, nullptr);
        case ExpressionKind::filter: {
            const Value object = operand(0);
            return apply_filter(expression.text, object,
                                evaluate_arguments(expression.arguments, scope));
        }
        case ExpressionKind::test: {
            const Value object = operand(0);
            return make_bool(apply_test(expression.text, object,
                                        evaluate_arguments(expression.arguments, scope)));
        }
        case ExpressionKind::negate:
        case ExpressionKind::plus: {
            const Value value = operand(0);
            if (!value.is_number()) fail(text("cannot negate ", kind_name(value)));
            const bool minus = expression.kind == ExpressionKind::negate;
            if (value.is_float()) return make_float(minus ? -value.number() : value.number());
            return minus ? binary(Operator::subtract, make_integer(0), value)
                         : make_integer(value.integer());
        }
        case ExpressionKind::logical_not: return make_bool(!truth(operand(0)));
        case ExpressionKind::logical_and: {
            Value left = operand(0);
            return truth(left) ? operand(1) : left;
        }
        case ExpressionKind::logical_or: {
            Value left = operand(0);
            return truth(left) ? left : operand(1);
        }
        case ExpressionKind::binary: {
            const Value left = operand(0);
            return binary(expression.operators[0], left, operand(1));
        }
        case ExpressionKind::comparison: return evaluate_comparison(expression, scope);
        case ExpressionKind::conditional:
            if (truth(operand(1))) return operand(0);
            return expression.operands[2] ? operand(2) : make_undefined();
    }

    return make_undefined();
}

Value Renderer::evaluate_name(const Expression& expression, Scope& scope) {
    for (const Scope* at = &scope; at; at = at->parent) {
        charge(at->variables.size() / 16);
        for (const auto& [name, value] : at->variables)
            if (name == expression.text) return value;
    }

    if (const auto found = globals_.find(expression.text); found != globals_.end())
        return found->second;

    if (is_known_function(expression.text)) {
        auto callable = std::make_shared<Callable>();
        callable->name = expression.text;
        return {std::shared_ptr<const Callable>(std::move(callable))};
    }

    return make_undefined(expression.text);
}

Value Renderer::evaluate_comparison(const Expression& expression, Scope& scope) {
    Value left = evaluate(*expression.operands[0], scope);
    for (std::size_t i = 0; i < expression.operators.size(); ++i) {
        Value right = evaluate(*expression.operands[i + 1], scope);
        if (!compare_values(expression.operators[i], left, right)) return make_bool(false);
        left = std::move(right);
    }
    return make_bool(true);
}

Value Renderer::evaluate_dict(const Expression& expression, Scope& scope) {
    Dict dict;
    for (std::size_t i = 0; i < expression.operands.size(); i += 2) {
        const Value key = evaluate(*expression.operands[i], scope);
        dict.set(key, evaluate(*expression.operands[i + 1], scope));
    }
    return make_dict(std::move(dict));
}

Value Renderer::evaluate_slice(const Expression& expression, Scope& scope) {
    const Value object = evaluate(*expression.operands[0], scope);
    std::optional<std::int64_t> parts[3];
    for (std::size_t i = 0; i < 3; ++i) {
        if (!expression.operands[i + 1]) continue;
        const Value value = evaluate(*expression.operands[i + 1], scope);
        if (!value.is_none()) parts[i] = integer_argument(value, "a slice");
    }

    const std::int64_t step = parts[2].value_or(1);
    if (step == 0) fail("a slice with step 0");

    std::vector<std::size_t> starts;
    std::int64_t length = 0;
    if (object.text()) {
        charge_bytes(4 * object.text()->size());
        starts = code_point_starts(object.text()->bytes());
        length = static_cast<std::int64_t>(starts.size()) - 1;
    } else if (object.list()) {
        length = static_cast<std::int64_t>(object.list()->items.size());
        charge(static_cast<std::uint64_t>(length));
    } else {
        fail(text("cannot slice ", kind_name(object)));
    }

    // Apply Python's rules for slices: a negative index counts from the end, and every index is
    // clamped to the length.
    const auto clamp = [&](std::int64_t at, std::int64_t low, std::int64_t high) {
        if (at < 0) at = at < -length ? -1 : at + length;
        return std::clamp(at, low, high);
    };

    const bool forward = step > 0;
    const std::int64_t start = parts[0]  ? clamp(*parts[0], forward ? 0 : -1,
                                                forward ? length : length - 1)
                               : forward ? 0
                                         : length - 1;
    const std::int64_t stop = parts[1]  ? clamp(*parts[1], forward ? 0 : -1,
                                               forward ? length : length - 1)
                              : forward ? length
                                        : -1;

    if (object.text() && step == 1) {
        const std::size_t begin = starts[static_cast<std::size_t>(start)],
                          end = starts[static_cast<std::size_t>(std::max(start, stop))];
        return make_text(object.text()->part(begin, end));
    }

    MarkedText characters;
    std::vector<Value> items;

    // Clamp the step of the slice, so that the sum below cannot overflow. A step beyond the length
    // selects one item.
    const std::int64_t stride = std::clamp(step, -length - 1, length + 1);
    for (std::int64_t i = start; forward ? i < stop : i > stop; i += stride) {
        const auto at = static_cast<std::size_t>(i);
        if (object.text())
            characters.append(*object.text(), starts[at], starts[at + 1]);
        else
            items.push_back(object.list()->items[at]);
    }

    return object.text() ? make_text(std::move(characters))
                         : make_list(std::move(items), object.list()->tuple);
}

CallArguments Renderer::evaluate_arguments(const Arguments& arguments, Scope& scope) {
    CallArguments out;
    for (const auto& argument : arguments.positional)
        out.positional.push_back(evaluate(*argument, scope));
    if (arguments.spread) {
        const ListPointer items = items_of(evaluate(*arguments.spread, scope));
        out.positional.insert(out.positional.end(), items->items.begin(), items->items.end());
    }

    for (const auto& [name, argument] : arguments.keyword)
        out.keyword.emplace_back(name, evaluate(*argument, scope));
    if (arguments.keyword_spread) {
        const Value mapping = evaluate(*arguments.keyword_spread, scope);
        if (!mapping.dict()) fail(text("** wants a mapping, got ", kind_name(mapping)));
        for (const auto& [key, value] : mapping.dict()->entries)
            out.keyword.emplace_back(text_argument(key, "**").bytes(), value);
    }

    return out;
}

Value Renderer::evaluate_call(const Expression& expression, Scope& scope, const Value* caller) {
    const Expression& function = *expression.operands[0];
    if (function.kind == ExpressionKind::attribute && function.text == "append") {
        const Value object = evaluate(*function.operands[0], scope);
        if (object.list() && !object.list()->tuple)
            return append_to(*function.operands[0], expression.arguments, scope);
    }
    const Value callee = evaluate(*expression.operands[0], scope);
    CallArguments arguments = evaluate_arguments(expression.arguments, scope);
    line_ = expression.line;

    if (const Loop* loop = callee.loop()) return call_loop(*loop, arguments);
    if (Namespace* state = callee.name_space(); state && state->kind == Namespace::Kind::joiner)
        return call_state(*state);

    const Callable* callable = callee.callable();
    if (!callable) {
        if (const Undefined* undefined = std::get_if<Undefined>(&callee.data))
            fail(text("'", undefined->name, "' is undefined and cannot be called"));
        fail(text(kind_name(callee), " cannot be called"));
    }

    if (callable->macro) return call_macro(*callable, std::move(arguments), caller);
    if (callable->method) return call_method(callable->self, callable->name, arguments);
    if (callable->name == "namespace" || callable->name == "cycler" || callable->name == "joiner")
        return make_state(callable->name, std::move(arguments));

    return call_function(callable->name, arguments);
}

// Creates the objects that namespace(...), cycler(...) and joiner(...) return. The rendering owns
// these objects, and the template may change them.
Value Renderer::make_state(std::string_view kind, CallArguments arguments) {
    auto state = std::make_unique<Namespace>();
    if (kind == "cycler") {
        state->kind = Namespace::Kind::cycler;
        state->items = std::move(arguments.positional);
        if (state->items.empty()) fail("cycler() wants at least one item");
    } else if (kind == "joiner") {
        state->kind = Namespace::Kind::joiner;
        const Value* separator = arguments.find(0, "sep");
        state->items.push_back(separator ? *separator : make_text(std::string(", ")));
    } else {
        if (!arguments.positional.empty()) {
            const Dict* dict = arguments.positional[0].dict();
            if (!dict) fail("namespace() wants a mapping or named values");
            for (const auto& [key, value] : dict->entries)
                state->attributes.insert_or_assign(text_argument(key, "namespace()").bytes(),
                                                   value);
        }

        for (auto& [name, value] : arguments.keyword)
            state->attributes.insert_or_assign(name, std::move(value));
    }

    namespaces_.push_back(std::move(state));
    return {namespaces_.back().get()};
}

// Evaluates a call of a joiner. The first call prints nothing, and every later call prints the
// separator.
Value Renderer::call_state(Namespace& joiner) {
    return joiner.position++ == 0 ? make_text(std::string()) : joiner.items[0];
}

}  // namespace moex::jinja
