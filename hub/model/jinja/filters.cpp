// The filters of Jinja that chat templates use. They have Jinja's own parameters and defaults.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <unordered_map>

#include "hub/model/jinja/known_names.h"
#include "hub/model/jinja/number_text.h"
#include "hub/model/jinja/renderer.h"
#include "hub/model/jinja/text_filters.h"
#include "hub/model/jinja/text_values.h"
#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex::jinja {
namespace {

using Filter = Value (*)(Renderer&, const Value&, const CallArguments&);

// Returns the value that a path of attributes like "a.b.0" reaches from `item`.
Value path(Renderer& renderer, const Value& item, const Value& attribute) {
    if (attribute.is_integer()) return renderer.item_of(item, attribute);
    const std::string& names = text_argument(attribute, "an attribute").bytes();
    Value at = item;
    for (std::size_t begin = 0; begin <= names.size();) {
        const std::size_t end = std::min(names.find('.', begin), names.size());
        const std::string name = names.substr(begin, end - begin);
        if (at.is_undefined()) return at;

        const bool number = !name.empty() && name.size() < 10 &&
                            name.find_first_not_of("0123456789") == std::string::npos;
        renderer.charge(1);
        at = number ? renderer.item_of(at, make_integer(std::stoll(name)))
                    : renderer.item_of(at, make_text(name));
        begin = end + 1;
    }

    return at;
}

// Returns the key by which an item is sorted, grouped or compared: the item itself, or one of its
// attributes.
Value sort_key(Renderer& renderer, const Value& item, const Value* attribute, bool case_sensitive) {
    Value value = attribute && !attribute->is_none() ? path(renderer, item, *attribute) : item;
    if (case_sensitive || !value.text()) return value;
    renderer.charge_bytes(value.text()->size());
    return make_text(lower(*value.text()));
}

std::vector<Value> sorted(Renderer& renderer, std::vector<Value> items, const Value* attribute,
                          bool case_sensitive, bool reverse) {
    std::vector<std::pair<Value, std::size_t>> keys;
    for (std::size_t i = 0; i < items.size(); ++i)
        keys.emplace_back(sort_key(renderer, items[i], attribute, case_sensitive), i);

    // Sort stably in ascending and in descending order, as Python does.
    std::stable_sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) {
        renderer.charge(std::min(weight_of(a.first), weight_of(b.first)));
        return reverse ? compare(b.first, a.first) < 0 : compare(a.first, b.first) < 0;
    });

    std::vector<Value> out;
    out.reserve(keys.size());
    for (const auto& [key, i] : keys) out.push_back(items[i]);
    return out;
}

Value filter_sort(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    return make_list(sorted(renderer, renderer.items_of(operand)->items,
                            arguments.find(2, "attribute"), flag(arguments, 1, "case_sensitive"),
                            flag(arguments, 0, "reverse")));
}

Value filter_dictsort(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    if (!operand.dict()) fail(text("dictsort wants a mapping, got ", kind_name(operand)));
    const Value* by = arguments.find(1, "by");
    const Value column = make_integer(by && text_argument(*by, "dictsort").bytes() == "value" ? 1
                                                                                              : 0);
    const Value items = renderer.call_method(operand, "items", {});
    return make_list(sorted(renderer, items.list()->items, &column,
                            flag(arguments, 0, "case_sensitive"), flag(arguments, 2, "reverse")));
}

Value extreme(Renderer& renderer, const Value& operand, const CallArguments& arguments, int sign) {
    const ListPointer items = renderer.items_of(operand);
    const Value* attribute = arguments.find(1, "attribute");
    const bool case_sensitive = flag(arguments, 0, "case_sensitive");
    if (items->items.empty()) return make_undefined("no items");

    Value best = items->items[0], best_key = sort_key(renderer, best, attribute, case_sensitive);
    for (const Value& item : items->items) {
        const Value key = sort_key(renderer, item, attribute, case_sensitive);
        renderer.charge(std::min(weight_of(key), weight_of(best_key)));
        if (sign * compare(key, best_key) > 0) best = item, best_key = key;
    }

    return best;
}

Value filter_unique(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    const Value* attribute = arguments.find(1, "attribute");
    const bool case_sensitive = flag(arguments, 0, "case_sensitive");
    std::set<std::string> seen_texts;
    std::vector<Value> seen, out;

    const ListPointer all = renderer.items_of(operand);
    for (const Value& item : all->items) {
        const Value key = sort_key(renderer, item, attribute, case_sensitive);
        if (key.text()) {
            if (!seen_texts.insert(key.text()->bytes()).second) continue;
        } else {
            renderer.charge(seen.size() * weight_of(key));
            if (std::any_of(seen.begin(), seen.end(),
                            [&](const Value& other) { return equal(key, other); }))
                continue;
            seen.push_back(key);
        }

        out.push_back(item);
    }

    return make_list(std::move(out));
}

Value filter_join(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    const Value* separator_value = arguments.find(0, "d");

    const Value* attribute = arguments.find(1, "attribute");
    const MarkedText separator = separator_value ? print(*separator_value) : MarkedText();
    MarkedText out;
    bool first = true;
    const ListPointer all = renderer.items_of(operand);
    for (const Value& item : all->items) {
        if (!first) out.append(separator);
        first = false;
        renderer.charge_bytes(separator.size());
        out.append(soft_text(renderer, attribute ? path(renderer, item, *attribute) : item));
    }

    return make_text(std::move(out));
}

Value filter_map(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    if (!truth(operand)) return make_list({});  // none counts as an empty list
    std::vector<Value> out;
    const Value* attribute = arguments.find(arguments.positional.size(), "attribute");
    const Value* otherwise = arguments.find(arguments.positional.size(), "default");

    CallArguments inner;
    std::string name;
    if (!attribute) {
        if (arguments.positional.empty()) fail("map wants a filter or an attribute");
        name = text_argument(arguments.positional[0], "map").bytes();
        if (!is_known_filter(name)) fail(text("the filter '", name, "' is not supported"));
        inner.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
        inner.keyword = arguments.keyword;
    }

    const ListPointer all = renderer.items_of(operand);
    for (const Value& item : all->items) {
        renderer.charge(1);
        if (!attribute) {
            out.push_back(renderer.apply_filter(name, item, inner));
            continue;
        }
        Value value = path(renderer, item, *attribute);
        if (value.is_undefined() && otherwise) value = *otherwise;
        out.push_back(std::move(value));
    }

    return make_list(std::move(out));
}

// Implements the filters select, reject, selectattr and rejectattr.
Value choose(Renderer& renderer, const Value& operand, const CallArguments& arguments,
             bool by_attribute, bool keep) {
    if (!truth(operand)) return make_list({});  // none counts as an empty list
    const std::size_t first = by_attribute ? 1 : 0;
    if (arguments.positional.size() < first) fail("selectattr and rejectattr want an attribute");

    CallArguments inner;
    std::string test;
    if (arguments.positional.size() > first) {
        test = text_argument(arguments.positional[first], "a test").bytes();
        if (!is_known_test(test)) fail(text("the test '", test, "' is not supported"));
        inner.positional.assign(
            arguments.positional.begin() + static_cast<std::ptrdiff_t>(first) + 1,
            arguments.positional.end());
        inner.keyword = arguments.keyword;
    }

    std::vector<Value> out;
    const ListPointer all = renderer.items_of(operand);
    for (const Value& item : all->items) {
        renderer.charge(1);
        const Value value = by_attribute ? path(renderer, item, arguments.positional[0]) : item;
        const bool passes = test.empty() ? truth(value) : renderer.apply_test(test, value, inner);
        if (passes == keep) out.push_back(item);
    }

    return make_list(std::move(out));
}

// Parses a text as JSON, as llama.cpp's templates do with the arguments of earlier calls.
Value filter_from_json(Renderer& renderer, const Value& operand, const CallArguments&) {
    const std::string& words = text_argument(operand, "from_json").bytes();
    renderer.charge_bytes(16 * words.size());
    auto parsed = parse_strict_json<nlohmann::ordered_json>(words, "from_json",
                                                            {.depth_max = value_depth_max});
    if (!parsed.ok()) fail(parsed.error().message);
    Value value = from_json(*parsed);
    renderer.charge(weight_of(value));
    return value;
}

Value filter_tojson(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    JsonStyle style;
    style.ensure_ascii = flag(arguments, 0, "ensure_ascii");
    style.sort_keys = flag(arguments, 3, "sort_keys");
    if (const Value* indent = arguments.find(1, "indent"); indent && !indent->is_none()) {
        style.indented = true;
        // Build the string in this form, because GCC 12 gives a false overlap warning for a plain
        // literal in fortified builds.
        style.item_separator = std::string(",");
        style.indent = indent->text()
                           ? indent->text()->bytes()
                           : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(
                                             integer_argument(*indent, "tojson"), 0, 64)),
                                         ' ');
    }

    if (const Value* separators = arguments.find(2, "separators");
        separators && !separators->is_none()) {
        const ListPointer pair = renderer.items_of(*separators);
        if (pair->items.size() != 2) fail("tojson: separators are two strings");
        style.item_separator = text_argument(pair->items[0], "tojson").bytes();
        style.key_separator = text_argument(pair->items[1], "tojson").bytes();
    }

    renderer.charge(weight_of(operand));
    MarkedText out;
    print_json(out, operand, style);
    renderer.charge_bytes(out.size());

    return make_text(std::move(out));
}

Value filter_length(Renderer& renderer, const Value& operand, const CallArguments&) {
    if (const MarkedText* source = operand.text()) {
        renderer.charge_bytes(source->size());
        return make_integer(static_cast<std::int64_t>(utf8_count(source->bytes())));
    }

    if (operand.list())
        return make_integer(static_cast<std::int64_t>(operand.list()->items.size()));
    if (operand.dict())
        return make_integer(static_cast<std::int64_t>(operand.dict()->entries.size()));
    if (const Loop* loop = operand.loop())
        return make_integer(static_cast<std::int64_t>(loop->items->items.size()));
    if (operand.is_undefined()) return make_integer(0);

    fail(text(kind_name(operand), " has no length"));
}

Value filter_int(Renderer&, const Value& operand, const CallArguments& arguments) {
    const Value* otherwise = arguments.find(0, "default");
    Value fallback = otherwise ? *otherwise : make_integer(0);
    const auto from_float = [&](double number) {
        return std::isfinite(number) && std::fabs(number) < 9e18
                   ? make_integer(static_cast<std::int64_t>(number))
                   : fallback;
    };

    if (operand.is_float()) return from_float(operand.number());
    if (operand.is_number()) return make_integer(operand.integer());
    if (!operand.text()) return fallback;

    std::string digits = strip(*operand.text(), Side::both).bytes();
    if (digits.starts_with('+')) digits.erase(0, 1);
    std::int64_t value = 0;
    const char* end = digits.data() + digits.size();
    if (!digits.empty() && std::from_chars(digits.data(), end, value).ptr == end)
        return make_integer(value);

    const std::optional<double> number = read_double(digits);
    return number ? from_float(*number) : fallback;
}

Value filter_float(Renderer&, const Value& operand, const CallArguments& arguments) {
    const Value* otherwise = arguments.find(0, "default");
    if (operand.is_number()) return make_float(operand.number());

    if (operand.text()) {
        std::string digits = strip(*operand.text(), Side::both).bytes();
        if (digits.starts_with('+')) digits.erase(0, 1);
        if (const std::optional<double> value = read_double(digits)) return make_float(*value);
    }

    return otherwise ? *otherwise : make_float(0.0);
}

Value filter_round(Renderer&, const Value& operand, const CallArguments& arguments) {
    if (!operand.is_number()) fail(text("round wants a number, got ", kind_name(operand)));
    const Value* precision = arguments.find(0, "precision");
    const Value* method = arguments.find(1, "method");
    const double scale = std::pow(
        10.0, static_cast<double>(precision ? std::clamp<std::int64_t>(
                                                  integer_argument(*precision, "round"), -300, 300)
                                            : 0));

    const std::string how = method ? text_argument(*method, "round").bytes() : "common";
    const double scaled = operand.number() * scale;
    if (how == "common") return make_float(std::nearbyint(scaled) / scale);
    if (how == "ceil" || how == "floor")
        return make_float((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);

    fail(text("round: the method '", how, "' is not supported"));
}

Value filter_sum(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    const Value* attribute = arguments.find(0, "attribute");
    const Value* start = arguments.find(1, "start");

    Value total = start ? *start : make_integer(0);
    const ListPointer all = renderer.items_of(operand);
    for (const Value& item : all->items)
        total = renderer.binary(
            Operator::add, total,
            attribute && !attribute->is_none() ? path(renderer, item, *attribute) : item);

    return total;
}

Value filter_batch(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    const Value* size_value = arguments.find(0, "linecount");
    const Value* fill = arguments.find(1, "fill_with");
    const std::int64_t size = size_value ? integer_argument(*size_value, "batch") : 0;
    if (size < 1 || size > 1'000'000) fail("batch wants a positive size");

    std::vector<Value> rows, row;
    const ListPointer all = renderer.items_of(operand);
    for (const Value& item : all->items) {
        renderer.charge(1);
        row.push_back(item);
        if (static_cast<std::int64_t>(row.size()) == size)
            rows.push_back(make_list(std::exchange(row, {})));
    }

    if (row.empty()) return make_list(std::move(rows));
    while (fill && !fill->is_none() && static_cast<std::int64_t>(row.size()) < size) {
        renderer.charge(1);
        row.push_back(*fill);
    }

    rows.push_back(make_list(std::move(row)));
    return make_list(std::move(rows));
}

Value filter_default(Renderer&, const Value& operand, const CallArguments& arguments) {
    const Value* otherwise = arguments.find(0, "default_value");
    if (!operand.is_undefined() && !(flag(arguments, 1, "boolean") && !truth(operand)))
        return operand;
    return otherwise ? *otherwise : make_text(std::string());
}

Value filter_reverse(Renderer& renderer, const Value& operand, const CallArguments&) {
    const ListPointer items = renderer.items_of(operand);
    renderer.charge(items->items.size());
    std::vector<Value> out(items->items.rbegin(), items->items.rend());
    if (!operand.text()) return make_list(std::move(out));
    MarkedText reversed;
    for (const Value& character : out) reversed.append(*character.text());
    return make_text(std::move(reversed));
}

Value filter_abs(Renderer& renderer, const Value& operand, const CallArguments&) {
    if (operand.is_float()) return make_float(std::fabs(operand.number()));
    if (!operand.is_number()) fail(text("abs wants a number, got ", kind_name(operand)));
    return operand.integer() < 0 ? renderer.binary(Operator::subtract, make_integer(0), operand)
                                 : make_integer(operand.integer());
}

Value filter_items(Renderer& renderer, const Value& operand, const CallArguments&) {
    if (operand.is_undefined()) return make_list({});
    if (!operand.dict()) fail(text("items wants a mapping, got ", kind_name(operand)));
    return renderer.call_method(operand, "items", {});
}

template <MarkedText (*map)(const MarkedText&)>
Value filter_text(Renderer& renderer, const Value& operand, const CallArguments&) {
    return make_text(map(soft_text(renderer, operand)));
}

Value filter_attr(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    const Value* name = arguments.find(0, "name");
    return name ? renderer.item_of(operand, *name) : make_undefined();
}

Value filter_first(Renderer& renderer, const Value& operand, const CallArguments&) {
    const ListPointer items = renderer.items_of(operand);
    return items->items.empty() ? make_undefined("first item") : items->items.front();
}

Value filter_last(Renderer& renderer, const Value& operand, const CallArguments&) {
    const ListPointer items = renderer.items_of(operand);
    return items->items.empty() ? make_undefined("last item") : items->items.back();
}

Value filter_format(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    return renderer.binary(Operator::modulo, operand, make_list(arguments.positional, true));
}

Value filter_list(Renderer& renderer, const Value& operand, const CallArguments&) {
    const ListPointer items = renderer.items_of(operand);
    renderer.charge(items->items.size());
    return make_list(items->items);
}

Value filter_safe(Renderer&, const Value& operand, const CallArguments&) { return operand; }

Value filter_string(Renderer& renderer, const Value& operand, const CallArguments&) {
    return make_text(soft_text(renderer, operand));
}

template <int sign>
Value filter_extreme(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    return extreme(renderer, operand, arguments, sign);
}

template <bool by_attribute, bool keep>
Value filter_choose(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    return choose(renderer, operand, arguments, by_attribute, keep);
}

const std::unordered_map<std::string_view, Filter>& filters() {
    static const std::unordered_map<std::string_view, Filter> table = {
        {"abs", filter_abs},
        {"attr", filter_attr},
        {"batch", filter_batch},
        {"capitalize", filter_text<capitalize>},
        {"center", filter_center},
        {"count", filter_length},
        {"d", filter_default},
        {"default", filter_default},
        {"dictsort", filter_dictsort},
        {"e", filter_escape},
        {"escape", filter_escape},
        {"first", filter_first},
        {"float", filter_float},
        {"forceescape", filter_escape},
        {"format", filter_format},
        {"from_json", filter_from_json},
        {"indent", filter_indent},
        {"int", filter_int},
        {"items", filter_items},
        {"join", filter_join},
        {"last", filter_last},
        {"length", filter_length},
        {"list", filter_list},
        {"lower", filter_text<lower>},
        {"map", filter_map},
        {"max", filter_extreme<1>},
        {"min", filter_extreme<-1>},
        {"reject", filter_choose<false, false>},
        {"rejectattr", filter_choose<true, false>},
        {"replace", filter_replace},
        {"reverse", filter_reverse},
        {"round", filter_round},
        {"safe", filter_safe},
        {"select", filter_choose<false, true>},
        {"selectattr", filter_choose<true, true>},
        {"sort", filter_sort},
        {"string", filter_string},
        {"sum", filter_sum},
        {"title", filter_text<title_words>},
        {"tojson", filter_tojson},
        {"trim", filter_trim},
        {"truncate", filter_truncate},
        {"unique", filter_unique},
        {"upper", filter_text<upper>},
        {"wordcount", filter_wordcount},
    };

    return table;
}

}  // namespace

bool is_known_filter(std::string_view name) { return filters().contains(name); }

Value Renderer::apply_filter(std::string_view name, const Value& operand,
                             const CallArguments& arguments) {
    const Depth depth(*this);
    charge(1);
    const auto found = filters().find(name);
    if (found == filters().end()) fail(text("the filter '", name, "' is not supported"));
    return found->second(*this, operand, arguments);
}

}  // namespace moex::jinja
