// Renderer evaluates a syntax tree (scopes, loops, macros, expressions) within bounds on steps,
// nesting and bytes. Each rendering has its own Renderer, which one thread uses. The syntax tree is
// shared and read-only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hub/model/jinja/limits.h"
#include "hub/model/jinja/syntax.h"

namespace moex::jinja {

// The variables of a block. If a variable is not found here, the lookup continues in `parent`.
struct Scope {
    explicit Scope(Scope* parent) : parent(parent) {}
    Scope* parent;
    // name and value; names point into the syntax tree
    std::vector<std::pair<std::string_view, Value>> variables;
    bool captured = false;  // true: a macro refers to this scope, so it outlives its block

    void set(std::string_view name, Value value);
};

// The evaluated arguments of a call, a filter or a test.
struct CallArguments {
    std::vector<Value> positional;
    std::vector<std::pair<std::string, Value>> keyword;

    // Returns the argument at `position` or with the name `name`; nullptr when there is no such
    // argument.
    const Value* find(std::size_t position, std::string_view name) const;
};

class Renderer {
  public:
    explicit Renderer(const TemplateLimits& limits);
    ~Renderer();

    void set_global(std::string name, Value value);
    // Renders a whole template. Throws a Failure on an error or when a limit is exceeded.
    MarkedText run(const Body& body);

    // The functions below are called by the implementations of filters, tests and methods.
    void charge(std::uint64_t steps);
    void charge_bytes(std::uint64_t bytes) { charge(1 + bytes / 64); }
    Value apply_filter(std::string_view name, const Value& operand, const CallArguments& arguments);
    bool apply_test(std::string_view name, const Value& operand, const CallArguments& arguments);
    Value call_method(const Value& self, std::string_view name, const CallArguments& arguments);
    Value call_function(std::string_view name, const CallArguments& arguments);
    Value attribute_of(const Value& object, std::string_view name);  // object.name: methods first
    Value item_of(const Value& object, const Value& key);            // object[key]
    // Returns the items that a loop over `value` visits. Throws a Failure for a value that cannot
    // be iterated.
    ListPointer items_of(const Value& value);
    bool contains(const Value& container, const Value& item);
    Value binary(Operator op, const Value& left, const Value& right);
    bool compare_values(Operator op, const Value& left, const Value& right);
    const TemplateLimits& limits() const { return limits_; }

  private:
    enum class Flow { next, break_loop, continue_loop };
    // Counts one level of the evaluator's recursion while the object exists.
    struct Depth {
        explicit Depth(Renderer& renderer);
        ~Depth() { --renderer.depth_; }
        Renderer& renderer;
    };

    Flow run_body(const Body& body, Scope& scope, MarkedText& out);
    Flow run_statement(const Statement& statement, Scope& scope, MarkedText& out);
    Flow run_branch(const Statement& statement, Scope& scope, MarkedText& out);
    Flow run_loop(const Statement& statement, Scope& scope, MarkedText& out);
    Flow run_loop_over(const Statement& statement, ListPointer items, Scope& scope,
                       MarkedText& out);
    Value call_loop(const Loop& loop, const CallArguments& arguments);
    Flow run_inner(const Body& body, Scope& scope, MarkedText& out);
    void run_call_block(const Statement& statement, Scope& scope, MarkedText& out);
    Value run_captured(const Statement& statement, Scope& scope);
    Value call_macro(const Callable& callable, CallArguments arguments, const Value* caller);
    void assign(const Target& target, const Value& value, Scope& scope);
    void emit(MarkedText& out, const MarkedText& text);
    std::unique_ptr<Scope> new_scope(Scope* parent);
    void drop_scope(std::unique_ptr<Scope> scope);

    Value evaluate(const Expression& expression, Scope& scope);
    Value evaluate_name(const Expression& expression, Scope& scope);
    Value evaluate_slice(const Expression& expression, Scope& scope);
    Value evaluate_call(const Expression& expression, Scope& scope, const Value* caller);
    Value* place_of(const Expression& expression, Scope& scope);
    Value append_to(const Expression& list, const Arguments& arguments, Scope& scope);
    Value evaluate_comparison(const Expression& expression, Scope& scope);
    Value evaluate_dict(const Expression& expression, Scope& scope);
    Value make_state(std::string_view kind, CallArguments arguments);
    Value call_state(Namespace& state);
    CallArguments evaluate_arguments(const Arguments& arguments, Scope& scope);

    TemplateLimits limits_;
    std::uint64_t steps_ = 0;
    std::uint32_t depth_ = 0;
    std::uint32_t line_ = 0;
    std::uint32_t loop_depth_ = 0;
    std::unordered_map<std::string, Value> globals_;
    std::vector<std::unique_ptr<Scope>> kept_scopes_;
    std::vector<std::unique_ptr<Namespace>> namespaces_;
};

[[noreturn]] void fail(const std::string& message);
// Returns `name` as a text that outlives the rendering if values of the kind of `object` have this
// method. Otherwise the result is empty.
std::string_view method_of(const Value& object, std::string_view name);
// These functions return an argument of the required kind. For another kind they throw a Failure,
// in which `what` names the filter or method.
const MarkedText& text_argument(const Value& value, std::string_view what);
std::int64_t integer_argument(const Value& value, std::string_view what);
// Returns the byte positions at which the code points of a text begin, and the position of its end.
std::vector<std::size_t> code_point_starts(std::string_view bytes);

}  // namespace moex::jinja
