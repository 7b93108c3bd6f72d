// Methods of strings, lists, mappings and loops, and the global functions.
// What would change an object is refused, as transformers' sandbox does.
#include <algorithm>
#include <ctime>

#include "hub/model/jinja/parser.h"
#include "hub/model/jinja/renderer.h"
#include "hub/model/jinja/text_values.h"
#include "protocol/text.h"

namespace moex::jinja {
namespace {

constexpr std::string_view methods[] = {
    "upper",        "lower",   "title",      "capitalize", "strip",    "lstrip",  "rstrip",
    "split",        "rsplit",  "splitlines", "startswith", "endswith", "replace", "find",
    "rfind",        "index",   "count",      "join",       "format",   "isdigit", "isdecimal",
    "isnumeric",    "isalpha", "isalnum",    "isspace",    "isupper",  "islower", "removeprefix",
    "removesuffix", "get",     "items",      "keys",       "values",   "cycle"};
constexpr std::string_view functions[] = {"range", "namespace", "dict", "raise_exception",
                                          "strftime_now"};

template <std::size_t N>
bool is_one_of(std::string_view name, const std::string_view (&names)[N]) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value list_of(std::vector<MarkedText> parts) {
    std::vector<Value> items;
    items.reserve(parts.size());
    for (MarkedText& part : parts) items.push_back(make_text(std::move(part)));
    return make_list(std::move(items));
}

// The whole count from the argument, or -1.
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

// "{} {0} {name}": fields without conversions or formats.
MarkedText format_braces(const MarkedText& format, const CallArguments& arguments) {
    MarkedText out;
    const std::string& bytes = format.bytes();
    std::size_t copied = 0, next = 0;
    for (std::size_t at = 0; at < bytes.size();) {
        const char c = bytes[at];
        if (c != '{' && c != '}') {
            ++at;
            continue;
        }
        out.append(format, copied, at);
        if (at + 1 < bytes.size() && bytes[at + 1] == c) {
            out.append(std::string(1, c), false);
            at += 2;
        } else {
            const std::size_t close = bytes.find('}', at);
            if (c == '}' || close == std::string::npos)
                fail("format(): a brace without its partner");
            const std::string field = bytes.substr(at + 1, close - at - 1);
            if (field.find_first_of(":!.[") != std::string::npos)
                fail(text("format(): the field {", field, "} is not supported"));
            const bool numbered = !field.empty() && field.size() < 5 &&
                                  field.find_first_not_of("0123456789") == std::string::npos;
            const std::size_t position = field.empty() ? next++
                                         : numbered    ? std::stoul(field)
                                                       : arguments.positional.size();
            const Value* value = arguments.find(position, field);
            if (!value) fail(text("format(): no value for {", field, "}"));
            out.append(print(*value));
            at = close + 1;
        }
        copied = at;
    }
    out.append(format, copied, bytes.size());
    return out;
}

Value call_text_method(Renderer& renderer, const MarkedText& self, std::string_view name,
                       const CallArguments& arguments) {
    const std::size_t num_arguments = arguments.positional.size();
    const auto argument = [&](std::size_t i) -> const Value& {
        if (i >= num_arguments) fail(text(name, "() wants more arguments"));
        return arguments.positional[i];
    };
    const std::string& bytes = self.bytes();
    if (name == "upper") return make_text(upper(self));
    if (name == "lower") return make_text(lower(self));
    if (name == "title") return make_text(title(self));
    if (name == "capitalize") return make_text(capitalize(self));
    if (name == "strip" || name == "lstrip" || name == "rstrip") {
        const Side side = name == "strip"    ? Side::both
                          : name == "lstrip" ? Side::left
                                             : Side::right;
        if (num_arguments == 0 || argument(0).is_none()) return make_text(strip(self, side));
        const std::string& characters = text_argument(argument(0), name).bytes();
        renderer.charge(characters.size() * (1 + bytes.size() / 64));
        return make_text(strip(self, side, characters));
    }
    if (name == "split" || name == "rsplit") {
        const Value* separator = arguments.find(0, "sep");
        const std::int64_t splits_max = count_argument(arguments, 1, "maxsplit");
        std::vector<MarkedText> parts;
        if (separator && !separator->is_none())
            parts = split(self, text_argument(*separator, name).bytes(), splits_max,
                          name == "rsplit");
        else if (name == "split" || splits_max < 0)
            parts = split_spaces(self, splits_max);
        else
            fail("rsplit() by white space with a bound is not supported");
        renderer.charge(2 * parts.size());
        return list_of(std::move(parts));
    }
    if (name == "splitlines") {
        const Value* keep_ends = arguments.find(0, "keepends");
        auto lines = split_lines(self, keep_ends && truth(*keep_ends));
        renderer.charge(2 * lines.size());
        return list_of(std::move(lines));
    }
    if (name == "startswith" || name == "endswith")
        return make_bool(starts_or_ends(self, argument(0), name == "startswith"));
    if (name == "replace") {
        const std::int64_t count = count_argument(arguments, 2, "count");
        MarkedText out = replace(self, text_argument(argument(0), name),
                                 text_argument(argument(1), name), count,
                                 renderer.limits().output_bytes_max);
        renderer.charge_bytes(out.size() * 2);
        return make_text(std::move(out));
    }
    if (name == "find" || name == "rfind" || name == "index") {
        const std::string& wanted = text_argument(argument(0), name).bytes();
        const std::size_t at = name == "rfind" ? bytes.rfind(wanted) : bytes.find(wanted);
        if (at == std::string::npos && name == "index") fail("index(): substring not found");
        return make_integer(at == std::string::npos ? -1 : code_points_before(self, at));
    }
    if (name == "count") {
        const std::string& wanted = text_argument(argument(0), name).bytes();
        if (wanted.empty()) return make_integer(code_points_before(self, bytes.size()) + 1);
        std::int64_t count = 0;
        for (std::size_t at = bytes.find(wanted); at != std::string::npos;
             at = bytes.find(wanted, at + wanted.size()))
            ++count;
        return make_integer(count);
    }
    if (name == "join") {
        MarkedText out;
        bool first = true;
        const ListPointer all = renderer.items_of(argument(0));
        for (const Value& item : all->items) {
            if (!first) out.append(self);
            first = false;
            out.append(text_argument(item, "join()"));
            renderer.charge_bytes(self.size() + item.text()->size());
        }
        return make_text(std::move(out));
    }
    if (name == "format") {
        for (const Value& value : arguments.positional)
            renderer.charge(weight_of(value) * (1 + bytes.size() / 3));
        for (const auto& [key, value] : arguments.keyword)
            renderer.charge(weight_of(value) * (1 + bytes.size() / 3));
        return make_text(format_braces(self, arguments));
    }
    if (name == "isdigit" || name == "isdecimal" || name == "isnumeric")
        return make_bool(all_are(bytes, is_decimal_digit));
    if (name == "isalpha") return make_bool(all_are(bytes, is_letter));
    if (name == "isalnum")
        return make_bool(
            all_are(bytes, [](char32_t c) { return is_letter(c) || is_decimal_digit(c); }));
    if (name == "isspace") return make_bool(all_are(bytes, is_python_space));
    if (name == "isupper")
        return make_bool(bytes == upper(self).bytes() && bytes != lower(self).bytes());
    if (name == "islower")
        return make_bool(bytes == lower(self).bytes() && bytes != upper(self).bytes());
    if (name == "removeprefix" || name == "removesuffix") {
        const std::string& wanted = text_argument(argument(0), name).bytes();
        const bool prefix = name == "removeprefix";
        if (!(prefix ? bytes.starts_with(wanted) : bytes.ends_with(wanted))) return make_text(self);
        return make_text(prefix ? self.part(wanted.size(), bytes.size())
                                : self.part(0, bytes.size() - wanted.size()));
    }
    fail(text("a string has no method '", name, "'"));
}

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

bool is_known_method(std::string_view name) { return is_one_of(name, methods); }
bool is_known_function(std::string_view name) { return is_one_of(name, functions); }

Value Renderer::call_method(const Value& self, std::string_view name,
                            const CallArguments& arguments) {
    charge(weight_of(self));
    if (self.text()) return call_text_method(*this, *self.text(), name, arguments);
    if (self.dict()) return call_dict_method(*this, *self.dict(), name, arguments);
    if (const Loop* loop = self.loop(); loop && name == "cycle") {
        if (arguments.positional.empty()) fail("loop.cycle() wants values");
        return arguments.positional[loop->index % arguments.positional.size()];
    }
    if (self.list() && (name == "index" || name == "count") && !arguments.positional.empty()) {
        const auto& items = self.list()->items;
        const auto same = [&](const Value& item) { return equal(item, arguments.positional[0]); };
        if (name == "count") return make_integer(std::count_if(items.begin(), items.end(), same));
        const auto found = std::find_if(items.begin(), items.end(), same);
        if (found == items.end()) fail("index(): no such item");
        return make_integer(found - items.begin());
    }
    fail(text("'", kind_name(self), "' has no method '", name, "'"));
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
