// The methods of strings, lists, mappings and loops that templates may call, and the global
// functions. Methods that would change an object are refused, as in the sandbox of transformers;
// append() of a list is the one exception.
#include <algorithm>
#include <ctime>
#include <unordered_map>

#include "hub/model/jinja/known_names.h"
#include "hub/model/jinja/renderer.h"
#include "hub/model/jinja/text_format.h"
#include "hub/model/jinja/text_values.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex::jinja {
namespace {

constexpr std::string_view functions[] = {"range",  "namespace",       "dict",        "cycler",
                                          "joiner", "raise_exception", "strftime_now"};

template <std::size_t N>
bool is_one_of(std::string_view name, const std::string_view (&names)[N]) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Returns the element of the list that equals `name`, as a view that outlives every template. The
// result is empty if the list does not contain `name`.
template <std::size_t N>
std::string_view own_name(std::string_view name, const std::string_view (&names)[N]) {
    const auto* const found = std::find(std::begin(names), std::end(names), name);
    return found == std::end(names) ? std::string_view() : *found;
}

// A call of a string's method: the string, the arguments and the renderer.
struct TextCall {
    Renderer& renderer;
    const MarkedText& self;
    std::string_view name;
    const CallArguments& arguments;

    const std::string& bytes() const { return self.bytes(); }
    std::size_t num_arguments() const { return arguments.positional.size(); }
    const Value& argument(std::size_t i) const {
        if (i >= num_arguments()) fail(text(name, "() wants more arguments"));
        return arguments.positional[i];
    }
    const MarkedText& text_at(std::size_t i) const { return text_argument(argument(i), name); }
};
using TextMethod = Value (*)(const TextCall&);

Value list_of(std::vector<MarkedText> parts) {
    std::vector<Value> items;
    items.reserve(parts.size());
    for (MarkedText& part : parts) items.push_back(make_text(std::move(part)));
    return make_list(std::move(items));
}

// Returns the argument that limits a count, or -1 if the argument is absent.
std::int64_t count_argument(const CallArguments& arguments, std::size_t position,
                            std::string_view name) {
    const Value* value = arguments.find(position, name);
    return value && !value->is_none() ? integer_argument(*value, name) : -1;
}

bool starts_or_ends(const MarkedText& self, const Value& pattern, bool at_start) {
    if (pattern.list()) {
        const auto& items = pattern.list()->items;
        return std::any_of(items.begin(), items.end(),
                           [&](const Value& item) { return starts_or_ends(self, item, at_start); });
    }
    const std::string& wanted =
        text_argument(pattern, at_start ? "startswith()" : "endswith()").bytes();
    return at_start ? self.bytes().starts_with(wanted) : self.bytes().ends_with(wanted);
}

std::int64_t code_points_before(const MarkedText& self, std::size_t at) {
    return static_cast<std::int64_t>(
               code_point_starts(std::string_view(self.bytes()).substr(0, at)).size()) -
           1;
}

template <MarkedText (*map)(const MarkedText&)>
Value mapped(const TextCall& call) {
    return make_text(map(call.self));
}

template <Side side>
Value strip_method(const TextCall& call) {
    if (call.num_arguments() == 0 || call.argument(0).is_none())
        return make_text(strip(call.self, side));

    const std::string& characters = call.text_at(0).bytes();
    call.renderer.charge(characters.size() * (1 + call.self.size() / 64));
    return make_text(strip(call.self, side, characters));
}

template <bool from_right>
Value split_method(const TextCall& call) {
    const Value* separator = call.arguments.find(0, "sep");
    const std::int64_t splits_max = count_argument(call.arguments, 1, "maxsplit");

    std::vector<MarkedText> parts;
    if (separator && !separator->is_none())
        parts = split(call.self, text_argument(*separator, call.name).bytes(), splits_max,
                      from_right);
    else if (!from_right || splits_max < 0)
        parts = split_spaces(call.self, splits_max);
    else
        fail("rsplit() by white space with a bound is not supported");

    call.renderer.charge(2 * parts.size());
    return list_of(std::move(parts));
}

Value splitlines_method(const TextCall& call) {
    const Value* keep_ends = call.arguments.find(0, "keepends");
    auto lines = split_lines(call.self, keep_ends && truth(*keep_ends));
    call.renderer.charge(2 * lines.size());
    return list_of(std::move(lines));
}

// Splits a text for partition() and rpartition() into (before, separator, behind). If the separator
// is not found, the whole text is the first part of partition() or the last part of rpartition().
template <bool from_right>
Value partition_method(const TextCall& call) {
    const std::string& separator = call.text_at(0).bytes();
    if (separator.empty()) fail("empty separator");

    const std::string& bytes = call.bytes();
    const std::size_t at = from_right ? bytes.rfind(separator) : bytes.find(separator);
    const bool found = at != std::string::npos;
    const std::size_t begin = found ? at : from_right ? 0 : bytes.size();
    const std::size_t end = found ? at + separator.size() : begin;

    return make_list({make_text(call.self.part(0, begin)), make_text(call.self.part(begin, end)),
                      make_text(call.self.part(end, bytes.size()))},
                     true);
}

template <bool at_start>
Value starts_or_ends_method(const TextCall& call) {
    return make_bool(starts_or_ends(call.self, call.argument(0), at_start));
}

Value replace_method(const TextCall& call) {
    const std::int64_t count = count_argument(call.arguments, 2, "count");
    MarkedText out = replace(call.self, call.text_at(0), call.text_at(1), count,
                             call.renderer.limits().output_bytes_max);
    call.renderer.charge_bytes(out.size() * 2);
    return make_text(std::move(out));
}

// Implements the methods find and rfind. Also implements index and rindex, which fail if the text
// is not found.
template <bool from_right, bool must>
Value find_method(const TextCall& call) {
    const std::string& wanted = call.text_at(0).bytes();
    const std::size_t at = from_right ? call.bytes().rfind(wanted) : call.bytes().find(wanted);
    if (at == std::string::npos && must) fail(text(call.name, "(): substring not found"));
    return make_integer(at == std::string::npos ? -1 : code_points_before(call.self, at));
}

Value count_method(const TextCall& call) {
    const std::string &bytes = call.bytes(), &wanted = call.text_at(0).bytes();
    if (wanted.empty()) return make_integer(code_points_before(call.self, bytes.size()) + 1);

    std::int64_t count = 0;
    for (std::size_t at = bytes.find(wanted); at != std::string::npos;
         at = bytes.find(wanted, at + wanted.size()))
        ++count;
    return make_integer(count);
}

Value join_method(const TextCall& call) {
    MarkedText out;
    bool first = true;
    const ListPointer all = call.renderer.items_of(call.argument(0));
    for (const Value& item : all->items) {
        if (!std::exchange(first, false)) out.append(call.self);
        out.append(text_argument(item, "join()"));
        call.renderer.charge_bytes(call.self.size() + item.text()->size());
    }

    return make_text(std::move(out));
}

Value format_method(const TextCall& call) {
    const std::size_t fields_max = 1 + call.self.size() / 3;
    for (const Value& value : call.arguments.positional)
        call.renderer.charge(weight_of(value) * fields_max);
    for (const auto& [key, value] : call.arguments.keyword)
        call.renderer.charge(weight_of(value) * fields_max);
    return make_text(format_braces(call.self, call.arguments));
}

// Implements the string methods that fill a text up to a width in characters, such as ljust.
template <Fill fill_side>
Value fill_method(const TextCall& call) {
    std::string filler = " ";
    if (call.num_arguments() > 1) filler = call.text_at(1).bytes();
    if (utf8_count(filler) != 1) fail(text(call.name, "() fills with one character"));

    const std::int64_t width = integer_argument(call.argument(0), call.name);
    call.renderer.charge(static_cast<std::uint64_t>(std::max<std::int64_t>(width, 0)));
    return make_text(fill(call.self, width, filler, fill_side));
}

Value zfill_method(const TextCall& call) {
    const std::int64_t width = integer_argument(call.argument(0), "zfill");
    call.renderer.charge(static_cast<std::uint64_t>(std::max<std::int64_t>(width, 0)));

    const bool has_sign = call.bytes().starts_with('+') || call.bytes().starts_with('-');
    const std::size_t sign_bytes = has_sign ? 1 : 0;
    MarkedText out = call.self.part(0, sign_bytes);
    const auto sign_width = static_cast<std::int64_t>(sign_bytes);
    out.append(
        fill(call.self.part(sign_bytes, call.self.size()), width - sign_width, "0", Fill::left));

    return make_text(std::move(out));
}

template <bool (*kind)(char32_t)>
Value all_method(const TextCall& call) {
    return make_bool(all_are(call.bytes(), kind));
}

Value isalnum_method(const TextCall& call) {
    return make_bool(all_are(call.bytes(), is_word_character));
}

template <MarkedText (*same)(const MarkedText&), MarkedText (*other)(const MarkedText&)>
Value is_case_method(const TextCall& call) {
    return make_bool(call.bytes() == same(call.self).bytes() &&
                     call.bytes() != other(call.self).bytes());
}

template <bool prefix>
Value remove_method(const TextCall& call) {
    const std::string &bytes = call.bytes(), &wanted = call.text_at(0).bytes();
    if (!(prefix ? bytes.starts_with(wanted) : bytes.ends_with(wanted)))
        return make_text(call.self);
    return make_text(prefix ? call.self.part(wanted.size(), bytes.size())
                            : call.self.part(0, bytes.size() - wanted.size()));
}

const std::unordered_map<std::string_view, TextMethod>& text_methods() {
    static const std::unordered_map<std::string_view, TextMethod> table = {
        {"capitalize", mapped<capitalize>},
        {"center", fill_method<Fill::both>},
        {"count", count_method},
        {"endswith", starts_or_ends_method<false>},
        {"find", find_method<false, false>},
        {"format", format_method},
        {"index", find_method<false, true>},
        {"isalnum", isalnum_method},
        {"isalpha", all_method<is_letter>},
        {"isdecimal", all_method<is_decimal_digit>},
        {"isdigit", all_method<is_decimal_digit>},
        {"islower", is_case_method<lower, upper>},
        {"isnumeric", all_method<is_decimal_digit>},
        {"isspace", all_method<is_python_space>},
        {"isupper", is_case_method<upper, lower>},
        {"join", join_method},
        {"ljust", fill_method<Fill::right>},
        {"lower", mapped<lower>},
        {"lstrip", strip_method<Side::left>},
        {"partition", partition_method<false>},
        {"removeprefix", remove_method<true>},
        {"removesuffix", remove_method<false>},
        {"replace", replace_method},
        {"rfind", find_method<true, false>},
        {"rindex", find_method<true, true>},
        {"rjust", fill_method<Fill::left>},
        {"rpartition", partition_method<true>},
        {"rsplit", split_method<true>},
        {"rstrip", strip_method<Side::right>},
        {"split", split_method<false>},
        {"splitlines", splitlines_method},
        {"startswith", starts_or_ends_method<true>},
        {"strip", strip_method<Side::both>},
        {"swapcase", mapped<swap_case>},
        {"title", mapped<title>},
        {"upper", mapped<upper>},
        {"zfill", zfill_method},
    };

    return table;
}

constexpr std::string_view list_methods[] = {"count", "index"};
constexpr std::string_view dict_methods[] = {"get", "items", "keys", "values"};
constexpr std::string_view loop_methods[] = {"changed", "cycle"};
constexpr std::string_view cycler_methods[] = {"next", "reset"};

Value call_dict_method(Renderer& renderer, const Dict& self, std::string_view name,
                       const CallArguments& arguments) {
    if (name == "get") {
        const Value* key = arguments.find(0, "key");
        if (!key) fail("get() wants a key");
        if (const Value* item = self.find(*key)) return *item;
        const Value* otherwise = arguments.find(1, "default");
        return otherwise ? *otherwise : make_none();
    }

    renderer.charge(3 * self.entries.size());
    std::vector<Value> out;
    for (const auto& [key, value] : self.entries) {
        if (name == "items") out.push_back(make_list({key, value}, true));
        if (name == "keys") out.push_back(key);
        if (name == "values") out.push_back(value);
    }

    return make_list(std::move(out));
}

Value call_list_method(const List& self, std::string_view name, const CallArguments& arguments) {
    if (arguments.positional.empty()) fail(text(name, "() wants an item"));
    const auto same = [&](const Value& item) { return equal(item, arguments.positional[0]); };
    if (name == "count")
        return make_integer(std::count_if(self.items.begin(), self.items.end(), same));

    const auto found = std::find_if(self.items.begin(), self.items.end(), same);
    if (found == self.items.end()) fail("index(): no such item");
    return make_integer(found - self.items.begin());
}

Value call_loop_method(Renderer& renderer, Loop& self, std::string_view name,
                       const CallArguments& arguments) {
    const std::vector<Value>& values = arguments.positional;
    if (name == "cycle") {
        if (values.empty()) fail("loop.cycle() wants values");
        return values[self.index % values.size()];
    }

    // loop.changed() returns true if the values differ from those of its previous call.
    for (const Value& value : values) renderer.charge(weight_of(value));
    if (self.was_asked && self.last_changed.size() == values.size() &&
        std::equal(values.begin(), values.end(), self.last_changed.begin(), equal))
        return make_bool(false);

    self.was_asked = true;
    self.last_changed = values;
    return make_bool(true);
}

Value call_cycler_method(Namespace& self, std::string_view name) {
    if (name == "reset") {
        self.position = 0;
        return make_none();
    }
    const Value& item = self.items[self.position];
    self.position = (self.position + 1) % self.items.size();
    return item;
}

Value range(Renderer& renderer, const CallArguments& arguments) {
    std::int64_t bounds[3] = {0, 0, 1};
    const std::size_t num_arguments = arguments.positional.size();
    if (num_arguments < 1 || num_arguments > 3) fail("range() wants one to three integers");
    for (std::size_t i = 0; i < num_arguments; ++i)
        bounds[num_arguments == 1 ? 1 : i] = integer_argument(arguments.positional[i], "range()");
    const auto [start, stop, step] = std::tuple(bounds[0], bounds[1], bounds[2]);
    if (step == 0) fail("range() with step 0");

    std::vector<Value> out;
    for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
        renderer.charge(1);
        out.push_back(make_integer(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }

    return make_list(std::move(out));
}

Value strftime_now(const Renderer& renderer, const CallArguments& arguments) {
    const Value* format = arguments.find(0, "format");
    if (!format) fail("strftime_now() wants a format");
    const std::string& pattern = text_argument(*format, "strftime_now()").bytes();
    if (pattern.size() > 200) fail("strftime_now(): the format is too long");

    std::tm parts{};
    if (renderer.limits().now_unix_s) {
        const auto now = static_cast<std::time_t>(*renderer.limits().now_unix_s);
        gmtime_r(&now, &parts);
    } else {
        const std::time_t now = std::time(nullptr);
        localtime_r(&now, &parts);
    }

    char buffer[4096];
    const std::size_t size = std::strftime(buffer, sizeof buffer, pattern.c_str(), &parts);
    return make_text(std::string(buffer, size));
}

}  // namespace

bool is_known_function(std::string_view name) { return is_one_of(name, functions); }

std::string_view method_of(const Value& object, std::string_view name) {
    if (object.text()) {
        const auto found = text_methods().find(name);
        return found == text_methods().end() ? std::string_view() : found->first;
    }
    if (object.list()) return own_name(name, list_methods);
    if (object.dict()) return own_name(name, dict_methods);
    if (object.loop()) return own_name(name, loop_methods);
    const Namespace* state = object.name_space();
    const bool is_cycler = state && state->kind == Namespace::Kind::cycler;
    return is_cycler ? own_name(name, cycler_methods) : std::string_view();
}

Value Renderer::call_method(const Value& self, std::string_view name,
                            const CallArguments& arguments) {
    charge(weight_of(self));
    if (method_of(self, name).empty())
        fail(text("'", kind_name(self), "' has no method '", name, "'"));

    if (self.text()) return text_methods().at(name)({*this, *self.text(), name, arguments});
    if (self.dict()) return call_dict_method(*this, *self.dict(), name, arguments);
    if (self.loop()) return call_loop_method(*this, *self.loop(), name, arguments);
    if (self.list()) return call_list_method(*self.list(), name, arguments);
    return call_cycler_method(*self.name_space(), name);
}

// Returns where a variable, or an attribute of a namespace, is stored; null: it is not stored.
Value* Renderer::place_of(const Expression& expression, Scope& scope) {
    if (expression.kind == ExpressionKind::name) {
        for (Scope* at = &scope; at; at = at->parent) {
            charge(at->variables.size() / 16);
            for (auto& [name, value] : at->variables)
                if (name == expression.text) return &value;
        }
        const auto found = globals_.find(expression.text);
        return found == globals_.end() ? nullptr : &found->second;
    }
    if (expression.kind != ExpressionKind::attribute) return nullptr;
    Namespace* const state = evaluate(*expression.operands[0], scope).name_space();
    if (!state) return nullptr;
    const auto found = state->attributes.find(expression.text);
    return found == state->attributes.end() ? nullptr : &found->second;
}

// Appends an item to a list. Lists are immutable, so the variable gets a longer list. Another
// variable with the same list does not change, which differs from Python.
Value Renderer::append_to(const Expression& list, const Arguments& arguments, Scope& scope) {
    CallArguments evaluated = evaluate_arguments(arguments, scope);
    if (evaluated.positional.size() != 1 || !evaluated.keyword.empty())
        fail("append() wants one item");
    Value* const place = place_of(list, scope);
    if (!place) fail("append() wants a variable that holds the list");
    charge(weight_of(*place));
    std::vector<Value> items = place->list()->items;
    items.push_back(std::move(evaluated.positional[0]));
    *place = make_list(std::move(items));
    return make_none();
}

Value Renderer::call_function(std::string_view name, const CallArguments& arguments) {
    if (name == "range") return range(*this, arguments);
    if (name == "strftime_now") return strftime_now(*this, arguments);

    if (name == "dict") {
        Dict dict;
        if (!arguments.positional.empty()) {
            if (!arguments.positional[0].dict()) fail("dict() wants a mapping or named values");
            dict = *arguments.positional[0].dict();
            charge(dict.weight);
        }
        for (const auto& [key, value] : arguments.keyword) dict.set(make_text(key), value);
        return make_dict(std::move(dict));
    }

    if (name == "raise_exception") {
        const Value* message = arguments.find(0, "message");
        fail(text("the template refuses: ", message ? print(*message).bytes() : std::string()));
    }

    fail(text("'", name, "' cannot be called"));
}

}  // namespace moex::jinja
