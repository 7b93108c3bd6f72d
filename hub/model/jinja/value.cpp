#include "hub/model/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "hub/model/jinja/number_text.h"
#include "hub/model/tokenizer/unicode.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex::jinja {
namespace {

template <class T>
const T* shared(const Value& value) {
    const auto* pointer = std::get_if<std::shared_ptr<const T>>(&value.data);
    return pointer ? pointer->get() : nullptr;
}

std::uint32_t depth_of(const Value& value) {
    if (const List* list = value.list()) return list->depth;
    if (const Dict* dict = value.dict()) return dict->depth;
    return 0;
}

std::uint32_t checked_depth(std::uint32_t inner) {
    if (inner >= value_depth_max)
        throw Failure{ErrorCode::invalid_argument,
                      text("lists and mappings nested over ", value_depth_max, " deep")};
    return inner + 1;
}

// Returns the text under which a mapping stores a key. The text is empty for kinds of values that
// cannot be keys.
std::string index_name(const Value& key) {
    if (key.text()) return std::string(1, 's').append(key.text()->bytes());
    return key.is_integer() || key.is_bool() ? moex::text('i', key.integer()) : std::string();
}

std::uint64_t checked_weight(std::uint64_t weight) {
    if (weight > value_weight_max)
        throw Failure{ErrorCode::invalid_argument, "a list or mapping too large for a template"};
    return weight;
}

void check_print(const MarkedText& out, std::uint32_t depth) {
    if (out.size() > 64 * value_weight_max)
        throw Failure{ErrorCode::invalid_argument, "a value too large to print"};
    if (depth > 2 * value_depth_max)
        throw Failure{ErrorCode::invalid_argument, "a value nested too deep to print"};
}

bool is_printable(char32_t c) {
    if (c < 0x7F) return c >= 0x20;
    switch (unicode_category(c)) {
        case UnicodeCategory::cc:
        case UnicodeCategory::cf:
        case UnicodeCategory::cs:
        case UnicodeCategory::co:
        case UnicodeCategory::cn:
        case UnicodeCategory::zl:
        case UnicodeCategory::zp:
        case UnicodeCategory::zs: return false;
        default: return true;
    }
}

std::string hex(const char* prefix, unsigned value, int width) {
    char buffer[16];
    std::snprintf(buffer, sizeof buffer, "%s%0*x", prefix, width, value);
    return buffer;
}

// Appends `source` to a text. Each character for which `escape` has a replacement is replaced. The
// marks of origin are kept.
template <class Escape>
void append_escaped(MarkedText& out, const MarkedText& source, const Escape& escape) {
    const std::string& bytes = source.bytes();
    std::size_t copied = 0, range = 0;
    for (std::size_t at = 0; at < bytes.size();) {
        const Utf8Step step = utf8_step(bytes, at);
        const std::string replacement = escape(step.code_point);
        if (!replacement.empty()) {
            out.append(source, copied, at);
            while (range < source.outside().size() && source.outside()[range].end <= at) ++range;
            out.append(replacement,
                       range < source.outside().size() && source.outside()[range].begin <= at);
            copied = at + step.num_bytes;
        }

        at += step.num_bytes;
    }

    out.append(source, copied, bytes.size());
}

void repr_text(MarkedText& out, const MarkedText& source) {
    const bool double_quotes = source.bytes().find('\'') != std::string::npos &&
                               source.bytes().find('"') == std::string::npos;
    const char quote = double_quotes ? '"' : '\'';
    out.append(std::string(1, quote), false);

    append_escaped(out, source, [quote](char32_t c) -> std::string {
        if (c == static_cast<char32_t>(quote) || c == '\\') return {'\\', static_cast<char>(c)};
        if (c == '\n') return "\\n";
        if (c == '\r') return "\\r";
        if (c == '\t') return "\\t";
        if (is_printable(c)) return {};
        if (c < 0x100) return hex("\\x", c, 2);
        return c < 0x10000 ? hex("\\u", c, 4) : hex("\\U", c, 8);
    });

    out.append(std::string(1, quote), false);
}

void json_text(MarkedText& out, const MarkedText& source, bool ensure_ascii) {
    out.append("\"", false);
    append_escaped(out, source, [ensure_ascii](char32_t c) -> std::string {
        switch (c) {
            case '"': return "\\\"";
            case '\\': return "\\\\";
            case '\n': return "\\n";
            case '\r': return "\\r";
            case '\t': return "\\t";
            case '\b': return "\\b";
            case '\f': return "\\f";
            default: break;
        }

        if (c < 0x20) return hex("\\u", c, 4);
        if (!ensure_ascii || c < 0x7F) return {};
        if (c < 0x10000) return c == 0x7F ? std::string() : hex("\\u", c, 4);

        const unsigned offset = c - 0x10000;
        return hex("\\u", 0xD800 + (offset >> 10), 4) + hex("\\u", 0xDC00 + (offset & 0x3FF), 4);
    });

    out.append("\"", false);
}

template <class Items, class PrintItem>
void print_container(MarkedText& out, const char* open, const char* close, const Items& items,
                     const JsonStyle& style, std::uint32_t depth, const PrintItem& print_item) {
    out.append(open, false);
    const auto new_line = [&](std::uint32_t levels) {
        std::string padding = "\n";
        for (std::uint32_t i = 0; i < levels; ++i) padding += style.indent;
        out.append(padding, false);
    };

    bool first = true;
    for (const auto& item : items) {
        if (!first) out.append(style.item_separator, false);
        first = false;
        if (style.indented) new_line(depth + 1);
        print_item(item);
    }

    if (style.indented && !first) new_line(depth);
    out.append(close, false);
}

}  // namespace

MarkedText::MarkedText(std::string bytes, bool outside) : bytes_(std::move(bytes)) {
    if (outside) mark(0, bytes_.size());
}

void MarkedText::mark(std::size_t begin, std::size_t end) {
    if (begin >= end) return;
    if (!outside_.empty() && outside_.back().end == begin)
        outside_.back().end = end;
    else
        outside_.push_back({begin, end});
}

void MarkedText::append(std::string_view bytes, bool outside) {
    bytes_ += bytes;
    if (outside) mark(bytes_.size() - bytes.size(), bytes_.size());
}

void MarkedText::append(const MarkedText& other) { append(other, 0, other.size()); }

void MarkedText::append(const MarkedText& other, std::size_t begin, std::size_t end) {
    const std::size_t base = bytes_.size();
    bytes_.append(other.bytes_, begin, end - begin);
    auto range = std::partition_point(other.outside_.begin(), other.outside_.end(),
                                      [&](const TextRange& r) { return r.end <= begin; });
    for (; range != other.outside_.end() && range->begin < end; ++range)
        mark(base + std::max(range->begin, begin) - begin,
             base + std::min(range->end, end) - begin);
}

MarkedText MarkedText::part(std::size_t begin, std::size_t end) const {
    MarkedText result;
    result.append(*this, begin, end);
    return result;
}

bool MarkedText::is_outside(std::size_t at) const {
    const auto range = std::partition_point(outside_.begin(), outside_.end(),
                                            [&](const TextRange& r) { return r.end <= at; });
    return range != outside_.end() && range->begin <= at;
}

const MarkedText* Value::text() const { return shared<MarkedText>(*this); }
const List* Value::list() const { return shared<List>(*this); }
const Dict* Value::dict() const { return shared<Dict>(*this); }
const Callable* Value::callable() const { return shared<Callable>(*this); }
Namespace* Value::name_space() const {
    const auto* pointer = std::get_if<Namespace*>(&data);
    return pointer ? *pointer : nullptr;
}
Loop* Value::loop() const {
    const auto* pointer = std::get_if<std::shared_ptr<Loop>>(&data);
    return pointer ? pointer->get() : nullptr;
}
double Value::number() const {
    if (const bool* b = std::get_if<bool>(&data)) return *b ? 1.0 : 0.0;
    if (const std::int64_t* i = std::get_if<std::int64_t>(&data)) return static_cast<double>(*i);
    if (is_wide()) return static_cast<double>(std::get<std::uint64_t>(data));
    return std::get<double>(data);
}
std::int64_t Value::integer() const {
    if (const bool* b = std::get_if<bool>(&data)) return *b ? 1 : 0;
    return std::get<std::int64_t>(data);
}

void Dict::set(Value key, Value value) {
    const std::string name = index_name(key);
    if (name.empty())
        throw Failure{ErrorCode::invalid_argument,
                      moex::text("keys of mappings are strings or integers, got ", kind_name(key))};

    depth = std::max(depth, checked_depth(depth_of(value)));
    weight = checked_weight(weight + weight_of(value) + weight_of(key));
    if (const auto found = index.find(name); found != index.end()) {
        entries[found->second].second = std::move(value);
        return;
    }

    index.emplace(name, entries.size());
    entries.emplace_back(std::move(key), std::move(value));
}

const Value* Dict::find(std::string_view key) const {
    const auto found = index.find(std::string(1, 's').append(key));
    return found == index.end() ? nullptr : &entries[found->second].second;
}

const Value* Dict::find(const Value& key) const {
    const auto found = index.find(index_name(key));
    return found == index.end() ? nullptr : &entries[found->second].second;
}

Value make_text(MarkedText text) { return {std::make_shared<const MarkedText>(std::move(text))}; }
Value make_text(std::string bytes, bool outside) {
    return make_text(MarkedText(std::move(bytes), outside));
}
Value make_bool(bool value) { return {value}; }
Value make_integer(std::int64_t value) { return {value}; }
Value make_float(double value) { return {value}; }
Value make_none() { return {None{}}; }
Value make_undefined(std::string name) { return {Undefined{std::move(name)}}; }
Value make_list(std::vector<Value> items, bool tuple) {
    std::uint32_t inner = 0;
    std::uint64_t weight = 1;
    for (const Value& item : items) {
        inner = std::max(inner, depth_of(item));
        weight += weight_of(item);
    }
    List list{std::move(items), tuple, checked_depth(inner), checked_weight(weight)};
    return {std::make_shared<const List>(std::move(list))};
}
Value make_dict(Dict dict) { return {std::make_shared<const Dict>(std::move(dict))}; }

Value from_json(const nlohmann::ordered_json& json, std::uint32_t depth) {
    checked_depth(depth);
    using Type = nlohmann::ordered_json::value_t;
    switch (json.type()) {
        case Type::boolean: return make_bool(json.get<bool>());
        case Type::number_integer: return make_integer(json.get<std::int64_t>());
        case Type::number_unsigned: {
            const auto number = json.get<std::uint64_t>();
            return number <= static_cast<std::uint64_t>(INT64_MAX)
                       ? make_integer(static_cast<std::int64_t>(number))
                       : Value{number};
        }
        case Type::number_float: return make_float(json.get<double>());
        case Type::string: return make_text(utf8_repair(json.get_ref<const std::string&>()), true);
        case Type::array: {
            std::vector<Value> items;
            for (const auto& item : json) items.push_back(from_json(item, depth + 1));
            return make_list(std::move(items));
        }
        case Type::object: {
            Dict dict;
            for (const auto& [key, item] : json.items())
                dict.set(make_text(utf8_repair(key), true), from_json(item, depth + 1));
            return make_dict(std::move(dict));
        }
        default: return make_none();
    }
}

std::uint64_t weight_of(const Value& value) {
    if (const MarkedText* t = value.text()) return 1 + t->size() / 64;
    if (const List* list = value.list()) return list->weight;
    if (const Dict* dict = value.dict()) return dict->weight;
    return 1;
}

bool truth(const Value& value) {
    if (const bool* b = std::get_if<bool>(&value.data)) return *b;
    if (value.is_integer()) return value.integer() != 0;
    if (value.is_float()) return value.number() != 0.0;
    if (const MarkedText* t = value.text()) return !t->empty();
    if (const List* list = value.list()) return !list->items.empty();
    if (const Dict* dict = value.dict()) return !dict->entries.empty();
    return !value.is_undefined() && !value.is_none();
}

bool equal(const Value& left, const Value& right) {
    if (left.is_number() && right.is_number()) {
        if (left.is_float() || right.is_float()) return left.number() == right.number();
        return left.integer() == right.integer();
    }

    if (left.text() && right.text()) return left.text()->bytes() == right.text()->bytes();
    if (left.list() && right.list()) {
        const List &a = *left.list(), &b = *right.list();
        return a.tuple == b.tuple && a.items.size() == b.items.size() &&
               std::equal(a.items.begin(), a.items.end(), b.items.begin(), equal);
    }

    if (left.dict() && right.dict()) {
        const Dict &a = *left.dict(), &b = *right.dict();
        return a.entries.size() == b.entries.size() &&
               std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
                   const Value* other = b.find(entry.first);
                   return other && equal(entry.second, *other);
               });
    }

    if (left.name_space() || right.name_space()) return left.name_space() == right.name_space();
    return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

int compare(const Value& left, const Value& right) {
    if (left.is_number() && right.is_number()) {
        if (left.is_float() || right.is_float()) {
            const double a = left.number(), b = right.number();
            return a < b ? -1 : a > b ? 1 : 0;
        }
        const std::int64_t a = left.integer(), b = right.integer();
        return a < b ? -1 : a > b ? 1 : 0;
    }

    // Comparing UTF-8 bytes gives the order of code points, which Python uses.
    if (left.text() && right.text()) return left.text()->bytes().compare(right.text()->bytes());

    if (left.list() && right.list()) {
        const auto &a = left.list()->items, &b = right.list()->items;
        for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
            if (!equal(a[i], b[i])) return compare(a[i], b[i]);
        return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
    }

    throw Failure{ErrorCode::invalid_argument,
                  text("cannot order ", kind_name(left), " and ", kind_name(right))};
}

const char* kind_name(const Value& value) {
    static constexpr const char* names[] = {"undefined", "None", "bool",    "int",
                                            "float",     "str",  "list",    "dict",
                                            "namespace", "loop", "function"};
    if (value.list() && value.list()->tuple) return "tuple";
    return names[value.data.index()];
}

std::string print_float(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";

    // Print the shortest digits that read back as the same number, in the layout of Python's repr.
    const std::string scientific = shortest_scientific(std::fabs(value));
    const std::size_t e = scientific.find('e');

    std::string digits(1, scientific[0]);
    if (e > 2) digits += scientific.substr(2, e - 2);

    const int exponent = std::stoi(scientific.substr(e + 1));
    std::string out = std::signbit(value) ? "-" : "";
    if (exponent < -4 || exponent >= 16) {
        out += digits[0];
        if (digits.size() > 1) out += text('.', std::string_view(digits).substr(1));
        out += text('e', exponent < 0 ? '-' : '+', std::abs(exponent) < 10 ? "0" : "",
                    std::abs(exponent));
    } else if (exponent < 0) {
        out += text("0.", std::string(static_cast<std::size_t>(-exponent - 1), '0'), digits);
    } else {
        const auto whole = static_cast<std::size_t>(exponent) + 1;
        if (digits.size() <= whole)
            out += text(digits, std::string(whole - digits.size(), '0'), ".0");
        else
            out += text(std::string_view(digits).substr(0, whole), '.',
                        std::string_view(digits).substr(whole));
    }

    return out;
}

MarkedText print(const Value& value) {
    if (const MarkedText* t = value.text()) return *t;
    MarkedText out;
    if (!value.is_undefined()) print_repr(out, value);
    return out;
}

void print_repr(MarkedText& out, const Value& value, std::uint32_t depth) {
    check_print(out, depth);
    if (value.is_undefined()) {
        out.append("Undefined", false);
    } else if (value.is_none()) {
        out.append("None", false);
    } else if (value.is_bool()) {
        out.append(truth(value) ? "True" : "False", false);
    } else if (value.is_integer()) {
        out.append(text(value.integer()), false);
    } else if (value.is_wide()) {
        out.append(std::to_string(std::get<std::uint64_t>(value.data)), false);
    } else if (value.is_float()) {
        out.append(print_float(value.number()), false);
    } else if (const MarkedText* t = value.text()) {
        repr_text(out, *t);
    } else if (const List* list = value.list()) {
        out.append(list->tuple ? "(" : "[", false);
        for (std::size_t i = 0; i < list->items.size(); ++i) {
            if (i > 0) out.append(", ", false);
            print_repr(out, list->items[i], depth + 1);
        }
        out.append(list->tuple ? (list->items.size() == 1 ? ",)" : ")") : "]", false);
    } else if (const Dict* dict = value.dict()) {
        out.append("{", false);
        bool first = true;
        for (const auto& [key, item] : dict->entries) {
            if (!first) out.append(", ", false);
            first = false;
            print_repr(out, key, depth + 1);
            out.append(": ", false);
            print_repr(out, item, depth + 1);
        }

        out.append("}", false);
    } else {
        out.append(text('<', kind_name(value), '>'), false);
    }
}

void print_json(MarkedText& out, const Value& value, const JsonStyle& style, std::uint32_t depth) {
    check_print(out, depth);
    if (value.is_none()) {
        out.append("null", false);
    } else if (value.is_bool()) {
        out.append(truth(value) ? "true" : "false", false);
    } else if (value.is_integer()) {
        out.append(text(value.integer()), false);
    } else if (value.is_wide()) {
        out.append(std::to_string(std::get<std::uint64_t>(value.data)), false);
    } else if (value.is_float()) {
        const double number = value.number();
        out.append(std::isnan(number)   ? "NaN"
                   : std::isinf(number) ? (number > 0 ? "Infinity" : "-Infinity")
                                        : print_float(number),
                   false);
    } else if (const MarkedText* t = value.text()) {
        json_text(out, *t, style.ensure_ascii);
    } else if (const List* list = value.list()) {
        print_container(out, "[", "]", list->items, style, depth,
                        [&](const Value& item) { print_json(out, item, style, depth + 1); });
    } else if (const Dict* dict = value.dict()) {
        auto entries = dict->entries;
        if (style.sort_keys)
            std::sort(entries.begin(), entries.end(),
                      [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });

        print_container(out, "{", "}", entries, style, depth, [&](const auto& entry) {
            json_text(out, print(entry.first), style.ensure_ascii);
            out.append(style.key_separator, false);
            print_json(out, entry.second, style, depth + 1);
        });
    } else {
        throw Failure{ErrorCode::invalid_argument,
                      text("tojson: ", kind_name(value), " has no JSON form")};
    }
}

}  // namespace moex::jinja
