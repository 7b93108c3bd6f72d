// The tests of Jinja that may follow "is", as in "x is defined".
#include <unordered_map>

#include "hub/model/jinja/known_names.h"
#include "hub/model/jinja/renderer.h"
#include "hub/model/jinja/text_values.h"
#include "protocol/text.h"

namespace moex::jinja {
namespace {

using Test = bool (*)(Renderer&, const Value&, const CallArguments&);

const Value& other(const CallArguments& arguments) {
    if (arguments.positional.empty()) fail("a test wants a value to compare with");
    return arguments.positional[0];
}

template <Operator op>
bool compares(Renderer& renderer, const Value& value, const CallArguments& arguments) {
    return renderer.compare_values(op, value, other(arguments));
}

std::int64_t remainder(Renderer& renderer, const Value& value, const Value& divisor) {
    integer_argument(value, "a test of divisibility");
    integer_argument(divisor, "a test of divisibility");
    return renderer.binary(Operator::modulo, value, divisor).integer();
}

const std::unordered_map<std::string_view, Test>& tests() {
    static const std::unordered_map<std::string_view, Test> table = {
        {"boolean", [](Renderer&, const Value& v, const CallArguments&) { return v.is_bool(); }},
        {"callable",
         [](Renderer&, const Value& v, const CallArguments&) { return v.callable() != nullptr; }},
        {"defined",
         [](Renderer&, const Value& v, const CallArguments&) { return !v.is_undefined(); }},
        {"undefined",
         [](Renderer&, const Value& v, const CallArguments&) { return v.is_undefined(); }},
        {"none", [](Renderer&, const Value& v, const CallArguments&) { return v.is_none(); }},
        {"true",
         [](Renderer&, const Value& v, const CallArguments&) { return v.is_bool() && truth(v); }},
        {"false",
         [](Renderer&, const Value& v, const CallArguments&) { return v.is_bool() && !truth(v); }},
        {"integer", [](Renderer&, const Value& v, const CallArguments&) { return v.is_integer(); }},
        {"float", [](Renderer&, const Value& v, const CallArguments&) { return v.is_float(); }},
        {"number", [](Renderer&, const Value& v, const CallArguments&) { return v.is_number(); }},
        {"string",
         [](Renderer&, const Value& v, const CallArguments&) { return v.text() != nullptr; }},
        {"mapping",
         [](Renderer&, const Value& v, const CallArguments&) { return v.dict() != nullptr; }},
        {"iterable",
         [](Renderer&, const Value& v, const CallArguments&) {
             return v.text() || v.list() || v.dict() || v.is_undefined();
         }},
        {"sequence", [](Renderer&, const Value& v,
                        const CallArguments&) { return v.text() || v.list() || v.dict(); }},
        {"lower",
         [](Renderer&, const Value& v, const CallArguments&) {
             const MarkedText t = print(v);
             return t.bytes() == lower(t).bytes() && t.bytes() != upper(t).bytes();
         }},
        {"upper",
         [](Renderer&, const Value& v, const CallArguments&) {
             const MarkedText t = print(v);
             return t.bytes() == upper(t).bytes() && t.bytes() != lower(t).bytes();
         }},
        {"odd", [](Renderer& r, const Value& v,
                   const CallArguments&) { return remainder(r, v, make_integer(2)) == 1; }},
        {"even", [](Renderer& r, const Value& v,
                    const CallArguments&) { return remainder(r, v, make_integer(2)) == 0; }},
        {"divisibleby", [](Renderer& r, const Value& v,
                           const CallArguments& a) { return remainder(r, v, other(a)) == 0; }},
        {"sameas",
         [](Renderer& r, const Value& v, const CallArguments& a) {
             return v.data.index() == other(a).data.index() &&
                    r.compare_values(Operator::equal, v, other(a));
         }},
        {"in", compares<Operator::in>},
        {"eq", compares<Operator::equal>},
        {"equalto", compares<Operator::equal>},
        {"ne", compares<Operator::not_equal>},
        {"lt", compares<Operator::less>},
        {"lessthan", compares<Operator::less>},
        {"le", compares<Operator::less_equal>},
        {"gt", compares<Operator::greater>},
        {"greaterthan", compares<Operator::greater>},
        {"ge", compares<Operator::greater_equal>},
        {"filter",
         [](Renderer&, const Value& v, const CallArguments&) {
             return v.text() && is_known_filter(v.text()->bytes());
         }},
        {"test", [](Renderer&, const Value& v,
                    const CallArguments&) { return v.text() && is_known_test(v.text()->bytes()); }},
    };

    return table;
}

}  // namespace

bool is_known_test(std::string_view name) {
    // The filter select() accepts operators as well as names of tests.
    return tests().contains(name) || name == "==" || name == "!=" || name == "<" || name == "<=" ||
           name == ">" || name == ">=";
}

bool Renderer::apply_test(std::string_view name, const Value& operand,
                          const CallArguments& arguments) {
    charge(weight_of(operand));
    static const std::unordered_map<std::string_view, std::string_view> symbols = {
        {"==", "eq"}, {"!=", "ne"}, {"<", "lt"}, {"<=", "le"}, {">", "gt"}, {">=", "ge"}};
    if (const auto symbol = symbols.find(name); symbol != symbols.end()) name = symbol->second;
    const auto found = tests().find(name);
    if (found == tests().end()) fail(text("the test '", name, "' is not supported"));
    return found->second(*this, operand, arguments);
}

}  // namespace moex::jinja
