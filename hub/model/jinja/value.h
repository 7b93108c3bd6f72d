// Values of a running template, with Python's rules for truth, equality, order, printing and JSON.
// Strings record the origin of their bytes. `outside` marks the bytes from messages or other
// variables, so that a control token counts only if the template itself wrote it, even after the
// template has cut and joined strings.
// Example: "<|im_start|>" + content has outside = [[12, 12 + length of content]].
// Values are immutable and shared, except for namespaces and loops, which belong to one rendering.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/model/tokenizer/utf8.h"
#include "protocol/result.h"

namespace moex::jinja {

// The error that stops a parse or a rendering. It is thrown inside this folder and caught in
// chat_template.cpp. An exception is used here because an evaluator of deep expressions is easier
// to read without a Result at every step.
struct Failure {
    ErrorCode code = ErrorCode::invalid_argument;
    std::string message;
};

// UTF-8 text that records which ranges of bytes came from outside the template.
class MarkedText {
  public:
    MarkedText() = default;
    explicit MarkedText(std::string bytes, bool outside = false);

    const std::string& bytes() const { return bytes_; }
    // Ranges of bytes that came from outside the template: ascending, disjoint, not touching.
    const std::vector<TextRange>& outside() const { return outside_; }
    bool any_outside() const { return !outside_.empty(); }
    bool all_outside() const {
        return outside_.size() == 1 && outside_[0].begin == 0 && outside_[0].end == bytes_.size();
    }
    std::size_t size() const { return bytes_.size(); }
    bool empty() const { return bytes_.empty(); }

    void append(std::string_view bytes, bool outside);
    void append(const MarkedText& other);
    void append(const MarkedText& other, std::size_t begin, std::size_t end);
    MarkedText part(std::size_t begin, std::size_t end) const;
    // Returns true if the byte at index `at` came from outside the template.
    bool is_outside(std::size_t at) const;

  private:
    void mark(std::size_t begin, std::size_t end);
    std::string bytes_;
    std::vector<TextRange> outside_;
};

struct Value;
struct List;
struct Dict;
struct Loop;
struct Namespace;
struct Callable;

struct Undefined {
    std::string name;  // for error messages
};
struct None {};

using TextPointer = std::shared_ptr<const MarkedText>;
using ListPointer = std::shared_ptr<const List>;
using DictPointer = std::shared_ptr<const Dict>;

struct Value {
    // A std::uint64_t is an integer beyond std::int64_t. It is printed with all its digits; in
    // arithmetic it counts as a float.
    std::variant<Undefined, None, bool, std::int64_t, double, TextPointer, ListPointer, DictPointer,
                 Namespace*, std::shared_ptr<Loop>, std::shared_ptr<const Callable>, std::uint64_t>
        data;

    bool is_undefined() const { return std::holds_alternative<Undefined>(data); }
    bool is_none() const { return std::holds_alternative<None>(data); }
    bool is_bool() const { return std::holds_alternative<bool>(data); }
    bool is_integer() const { return std::holds_alternative<std::int64_t>(data); }
    bool is_wide() const { return std::holds_alternative<std::uint64_t>(data); }
    bool is_float() const { return std::holds_alternative<double>(data) || is_wide(); }
    bool is_number() const { return is_bool() || is_integer() || is_float(); }
    const MarkedText* text() const;
    const List* list() const;
    const Dict* dict() const;
    Namespace* name_space() const;
    Loop* loop() const;
    const Callable* callable() const;
    // Returns the value as a number; true counts as 1.
    double number() const;
    std::int64_t integer() const;
};

// limit for nested lists; it bounds the stack when values are printed, compared and freed
constexpr std::uint32_t value_depth_max = 100;
// limit for the weight of one value: its nodes and 64-byte units of text, where shared parts count
// each time
constexpr std::uint64_t value_weight_max = 4'000'000;

struct List {
    std::vector<Value> items;
    bool tuple = false;
    std::uint32_t depth = 1;
    std::uint64_t weight = 1;
};

// A mapping that keeps the order of insertion. Keys are strings or integers.
struct Dict {
    std::vector<std::pair<Value, Value>> entries;
    // position of each key in `entries`; the map is keyed by kind and text of the key
    std::unordered_map<std::string, std::size_t> index;
    std::uint32_t depth = 1;
    std::uint64_t weight = 1;

    // Sets the value of a key. Throws a Failure if `key` is not a string or an integer.
    void set(Value key, Value value);
    const Value* find(std::string_view key) const;
    const Value* find(const Value& key) const;
};

// A value that templates may change: a namespace, or the state of a cycler or joiner. The rendering
// owns it, so reference cycles through it do not leak memory.
struct Namespace {
    enum class Kind { plain, cycler, joiner };
    Kind kind = Kind::plain;
    std::map<std::string, Value, std::less<>> attributes;
    std::vector<Value> items;  // items of a cycler, or the separator of a joiner
    std::size_t position = 0;  // next item of a cycler, or number of calls of a joiner
};

struct MacroNode;
struct Scope;
struct Statement;

struct Loop {
    ListPointer items;
    std::size_t index = 0;
    std::uint32_t depth = 1;
    std::vector<Value> last_changed;  // arguments of the previous call of loop.changed()
    bool was_asked = false;           // loop.changed() was called
    // for a recursive loop while it runs: the loop's statement, which loop(items) repeats, and its
    // scope
    const Statement* statement = nullptr;
    Scope* scope = nullptr;
};

// A value that can be called: a macro, the body of a call block, a global function, or a method
// bound to its object.
struct Callable {
    std::string_view name;
    const MacroNode* macro = nullptr;
    Scope* scope = nullptr;  // scope in which the macro was defined
    bool method = false;
    Value self;
};

Value make_text(MarkedText text);
Value make_text(std::string bytes, bool outside = false);
Value make_bool(bool value);
Value make_integer(std::int64_t value);
Value make_float(double value);
Value make_none();
Value make_undefined(std::string name = {});
Value make_list(std::vector<Value> items, bool tuple = false);
Value make_dict(Dict dict);

// Converts JSON to a value of a template. Its strings are marked as coming from outside the
// template. Throws a Failure if the JSON is nested too deep.
Value from_json(const nlohmann::ordered_json& json, std::uint32_t depth = 0);

// Returns the cost of visiting all parts of a value, counted as for value_weight_max.
std::uint64_t weight_of(const Value& value);
bool truth(const Value& value);
bool equal(const Value& left, const Value& right);
// Compares two values. Returns a negative number, zero or a positive number. Throws a Failure for
// kinds of values without an order.
int compare(const Value& left, const Value& right);
const char* kind_name(const Value& value);  // Python's name of the value's type

// Returns str(value), the text that {{ value }} prints. An undefined value prints nothing.
MarkedText print(const Value& value);
// Appends repr(value), the form in which values inside lists and dicts are printed.
void print_repr(MarkedText& out, const Value& value, std::uint32_t depth = 0);
std::string print_float(double value);

struct JsonStyle {
    bool ensure_ascii = false;
    bool sort_keys = false;
    bool indented = false;
    std::string indent;  // one level
    std::string item_separator = ", ";
    std::string key_separator = ": ";
};
void print_json(MarkedText& out, const Value& value, const JsonStyle& style,
                std::uint32_t depth = 0);

}  // namespace moex::jinja
