#include "hub/api/grammar/schema_document.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "hub/api/grammar/schema_formats.h"
#include "hub/api/grammar/schema_values.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint32_t merges_max = 2000, merge_depth_max = 96;
constexpr std::uint64_t made_values_max = 400'000;  // values in all schemas that were made

// Keywords that restrict values. If a schema has such a keyword beside a `$ref` or an `allOf`, both
// are merged into one schema.
constexpr std::array meaning_keywords{"type",          "enum",
                                      "const",         "properties",
                                      "required",      "items",
                                      "anyOf",         "allOf",
                                      "oneOf",         "minItems",
                                      "maxItems",      "prefixItems",
                                      "minLength",     "maxLength",
                                      "minimum",       "maximum",
                                      "multipleOf",    "exclusiveMinimum",
                                      "pattern",       "exclusiveMaximum",
                                      "format",        "patternProperties",
                                      "$ref",          "additionalProperties",
                                      "minProperties", "unevaluatedProperties",
                                      "maxProperties", "if",
                                      "not",           "propertyNames",
                                      "uniqueItems",   "contains",
                                      "dependencies",  "dependentRequired",
                                      "$dynamicRef",   "dependentSchemas",
                                      "$recursiveRef", "unevaluatedItems"};

std::uint64_t count_values(const OrderedJson& value) {
    std::uint64_t count = 1;
    if (value.is_structured())
        for (const OrderedJson& inside : value) count += count_values(inside);
    return count;
}

OrderedJson both(const OrderedJson& a, const OrderedJson& b) {
    if (a == false || b == false) return false;
    if (a == b || b == true) return a;
    if (a == true) return b;
    return {{"allOf", OrderedJson::array({a, b})}};
}

OrderedJson common_types(const OrderedJson& a, const OrderedJson& b) {
    const auto list = [](const OrderedJson& types) {
        return types.is_array() ? types : OrderedJson::array({types});
    };
    OrderedJson out = OrderedJson::array();
    for (const OrderedJson& one : list(a))
        for (const OrderedJson& other : list(b)) {
            if (one == other || (one == "integer" && other == "number")) out.push_back(one);
            if (one == "number" && other == "integer") out.push_back(other);
        }
    return out;
}

// Returns the values of `a`, a list or the only value, that are also values of `b`.
OrderedJson common_values(const OrderedJson& a, const OrderedJson& b) {
    OrderedJson kept = OrderedJson::array();
    for (const OrderedJson& one : a)
        if (std::any_of(b.begin(), b.end(),
                        [&](const OrderedJson& other) { return same_value(one, other); }))
            kept.push_back(one);
    return kept;
}

void merge_items(const OrderedJson& a, const OrderedJson& b, OrderedJson& out) {
    const auto list = [](const OrderedJson& schema) {
        return schema.contains("prefixItems") ? schema["prefixItems"] : OrderedJson::array();
    };
    const auto rest = [](const OrderedJson& schema) {
        return schema.contains("items") ? schema["items"] : OrderedJson(true);
    };
    const OrderedJson of_a = list(a), of_b = list(b);
    OrderedJson prefix = OrderedJson::array();
    for (std::size_t i = 0; i < std::max(of_a.size(), of_b.size()); ++i)
        prefix.push_back(
            both(i < of_a.size() ? of_a[i] : rest(a), i < of_b.size() ? of_b[i] : rest(b)));
    if (!prefix.empty()) out["prefixItems"] = std::move(prefix);
    if (a.contains("items") || b.contains("items")) out["items"] = both(rest(a), rest(b));
}

// Decodes a token of a JSON pointer in a URI fragment: first the percent encoding of RFC 3986, then
// the two escapes of RFC 6901.
std::string decoded_pointer_token(std::string_view token) {
    std::string out;
    for (std::size_t i = 0; i < token.size(); ++i) {
        const auto digit = [&](std::size_t at) {
            const char lower = static_cast<char>(token[at] | 0x20);
            if (token[at] >= '0' && token[at] <= '9') return token[at] - '0';
            return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
        };
        const bool is_encoded = token[i] == '%' && i + 2 < token.size() && digit(i + 1) >= 0 &&
                                digit(i + 2) >= 0;
        out += is_encoded ? static_cast<char>(digit(i + 1) * 16 + digit(i + 2)) : token[i];
        if (is_encoded) i += 2;
    }
    for (const auto& [from, to] : {std::pair("~1", "/"), std::pair("~0", "~")})
        for (std::size_t i = out.find(from); i != std::string::npos; i = out.find(from, i + 1))
            out.replace(i, 2, to);
    return out;
}

// Returns the part of `at` that a pointer's token names; null: there is none.
const OrderedJson* part_of(const OrderedJson& at, const std::string& token) {
    if (at.is_object() && at.contains(token)) return &at[token];
    constexpr std::size_t digits_max = 5;
    if (!at.is_array() || token.empty() || token.size() > digits_max ||
        token.find_first_not_of("0123456789") != std::string::npos)
        return nullptr;
    const std::size_t index = std::stoul(token);
    return index < at.size() ? &at[index] : nullptr;
}

// Returns the schema whose `$anchor` (in older drafts its `$id` or `id`) has this name.
const OrderedJson* find_anchor(const OrderedJson& at, const std::string& name) {
    if (at.is_object()) {
        for (const char* key : {"$anchor", "$dynamicAnchor"})
            if (const auto found = at.find(key); found != at.end() && *found == name) return &at;
        for (const char* key : {"$id", "id"})
            if (const auto found = at.find(key); found != at.end() && *found == "#" + name)
                return &at;
    }
    if (at.is_structured())
        for (const OrderedJson& inside : at)
            if (const OrderedJson* const found = find_anchor(inside, name)) return found;
    return nullptr;
}

}  // namespace

void SchemaDocument::fail(const std::string& path, std::string_view keyword, std::string_view what,
                          ErrorCode code) const {
    throw SchemaFailure{{code, text(path, ": ", what)}, std::string(keyword)};
}

void SchemaDocument::fail_limit(const std::string& path, std::string_view what) const {
    throw SchemaFailure{{ErrorCode::unsupported, text(path, ": ", what)}, {}, true};
}

void SchemaDocument::weaken(const std::string& path, std::string_view keyword) {
    if (!weakened_) return;
    std::string_view place(path);
    if (place.starts_with(name_)) place.remove_prefix(name_.size());
    if (place.starts_with('.')) place.remove_prefix(1);
    const Weakening one{std::string(place), std::string(keyword)};
    if (std::find(weakened_->begin(), weakened_->end(), one) == weakened_->end())
        weakened_->push_back(one);
}

const OrderedJson& SchemaDocument::resolve(const OrderedJson& schema,
                                           const std::string& path) const {
    const OrderedJson& ref = schema["$ref"];
    if (!ref.is_string()) fail(path, "$ref", "'$ref' is no string", ErrorCode::invalid_argument);
    const auto& target = ref.get_ref<const std::string&>();
    if (!target.starts_with('#'))
        fail(path, "$ref",
             text("'$ref' to ", target.substr(0, 80),
                  " is not supported: only places of this document are"));

    const OrderedJson* at = &root_;
    if (target.size() > 1 && target[1] != '/') at = find_anchor(root_, target.substr(1));
    for (std::size_t begin = 2; at && target.starts_with("#/") && begin <= target.size();) {
        const std::size_t end = std::min(target.find('/', begin), target.size());
        at = part_of(*at, decoded_pointer_token(target.substr(begin, end - begin)));
        begin = end + 1;
    }
    if (!at)
        fail(path, "$ref", text("'$ref' to ", target.substr(0, 80), ", which does not exist"),
             ErrorCode::invalid_argument);
    return *at;
}

const OrderedJson& SchemaDocument::keep(OrderedJson schema) {
    made_values_ += count_values(schema);
    if (++merges_ > merges_max || made_values_ > made_values_max)
        fail_limit(name_, "too large after its parts are merged");
    made_.push_back(std::move(schema));
    return made_.back();
}

bool SchemaDocument::has_meaning_beside(const OrderedJson& schema, std::string_view keyword) {
    return std::any_of(meaning_keywords.begin(), meaning_keywords.end(),
                       [&](const char* name) { return name != keyword && schema.contains(name); });
}

bool SchemaDocument::is_closed(const OrderedJson& schema) const {
    if (schema.contains("additionalProperties"))
        return schema["additionalProperties"] == false && !schema.contains("patternProperties");
    const auto declared = schema.find("properties");
    if (!reading_.closes_objects || declared == schema.end() ||
        schema.contains("patternProperties"))
        return false;
    // Members that are only forbidden do not close an object.
    return declared->empty() || std::any_of(declared->begin(), declared->end(),
                                            [](const OrderedJson& one) { return one != false; });
}

OrderedJson SchemaDocument::flattened(const OrderedJson& schema, const std::string& path) {
    if (schema.is_boolean()) return schema;
    const std::optional<OrderedJson> translated = plain(schema, path);
    const OrderedJson& known = translated ? *translated : schema;
    if (!known.is_object()) return known;
    const Deeper deeper(depth_);
    if (depth_ > merge_depth_max)
        fail_limit(path, "refers to itself in a way that is not supported");

    OrderedJson rest = known;
    rest.erase("$ref");
    rest.erase("allOf");
    if (known.contains("$ref")) rest = merged(rest, flattened(resolve(known, path), path), path);
    if (const auto all = known.find("allOf"); all != known.end()) {
        if (!all->is_array() || all->empty())
            fail(path, "allOf", "'allOf' is no list", ErrorCode::invalid_argument);
        for (std::size_t i = 0; i < all->size(); ++i) {
            OrderedJson part = flattened((*all)[i], text(path, ".allOf[", i, "]"));
            // A part sees none of the members that the other parts declare.
            if (part.is_object() && part.contains("unevaluatedProperties")) {
                if (!part.contains("additionalProperties"))
                    part["additionalProperties"] = part["unevaluatedProperties"];
                part.erase("unevaluatedProperties");
            }
            rest = merged(rest, part, path);
        }
    }
    return rest;
}

OrderedJson SchemaDocument::merged(const OrderedJson& a, const OrderedJson& b,
                                   const std::string& path) {
    if (a == false || b == false) return false;
    if (a == true) return b;
    if (b == true) return a;
    if (++merges_ > merges_max) fail_limit(path, "too large after its parts are merged");
    OrderedJson out = a;
    merge_members(a, b, out, path);
    merge_items(a, b, out);
    for (const auto& [key, value] : b.items()) merge_keyword(key, value, out, path);
    return out;
}

// Returns what the patterns that match a member's name demand of it.
OrderedJson SchemaDocument::patterns_of_member(const OrderedJson& schema, const std::string& name,
                                               const std::string& path, bool& is_matched) const {
    OrderedJson out = true;
    const auto patterns = schema.find("patternProperties");
    if (patterns == schema.end() || !patterns->is_object()) return out;
    for (const auto& [pattern, value] : patterns->items()) {
        const auto names = automaton_of_pattern(pattern);
        if (!names.ok()) fail(path, "patternProperties", names.error().message, names.error().code);
        if (!holds(**names, name)) continue;
        is_matched = true;
        out = both(out, value);
    }
    return out;
}

OrderedJson SchemaDocument::schema_of_member(const OrderedJson& schema, const std::string& name,
                                             const std::string& path) const {
    bool is_matched = false;
    OrderedJson out = patterns_of_member(schema, name, path, is_matched);
    if (is_matched || !schema.contains("additionalProperties")) return out;
    return schema["additionalProperties"];
}

OrderedJson SchemaDocument::with_patterns(const OrderedJson& schema, const std::string& name,
                                          const OrderedJson& value, const std::string& path) const {
    bool is_matched = false;
    return both(value, patterns_of_member(schema, name, path, is_matched));
}

void SchemaDocument::merge_members(const OrderedJson& a, const OrderedJson& b, OrderedJson& out,
                                   const std::string& path) const {
    const OrderedJson none = OrderedJson::object();
    const OrderedJson& of_a = a.contains("properties") ? a["properties"] : none;
    const OrderedJson& of_b = b.contains("properties") ? b["properties"] : none;
    if (!of_a.is_object() || !of_b.is_object())
        fail(path, "properties", "'properties' is no object", ErrorCode::invalid_argument);
    if (a.contains("properties") || b.contains("properties")) {
        OrderedJson properties = OrderedJson::object();
        for (const auto& [name, schema] : of_a.items())
            properties[name] = both(
                schema, of_b.contains(name) ? of_b[name] : schema_of_member(b, name, path));
        for (const auto& [name, schema] : of_b.items())
            if (!of_a.contains(name))
                properties[name] = both(schema, schema_of_member(a, name, path));
        out["properties"] = std::move(properties);
    }

    const auto further = [](const OrderedJson& schema) {
        return schema.contains("additionalProperties") ? schema["additionalProperties"]
                                                       : OrderedJson(true);
    };
    const bool has_patterns = a.contains("patternProperties") || b.contains("patternProperties");
    const bool restricts = a.contains("additionalProperties") || b.contains("additionalProperties");
    if (has_patterns && restricts && (further(a) != true || further(b) != true)) {
        // Names that one of the schemas matches by a pattern are further members of the other.
        const OrderedJson& with = a.contains("patternProperties") ? a : b;
        const OrderedJson& other = a.contains("patternProperties") ? b : a;
        if (other.contains("patternProperties"))
            fail(path, "patternProperties", "'patternProperties' in several parts of an 'allOf'");
        OrderedJson patterns = OrderedJson::object();
        for (const auto& [pattern, schema] : with["patternProperties"].items())
            patterns[pattern] = both(schema, further(other));
        out["patternProperties"] = std::move(patterns);
    }
    if (restricts) out["additionalProperties"] = both(further(a), further(b));
}

void SchemaDocument::merge_keyword(const std::string& key, const OrderedJson& value,
                                   OrderedJson& out, const std::string& path) const {
    static const std::set<std::string> done{"properties", "additionalProperties", "prefixItems",
                                            "items"};
    static const std::set<std::string> larger{"minLength", "minItems", "minimum",
                                              "exclusiveMinimum", "minProperties"};
    static const std::set<std::string> smaller{"maxLength", "maxItems", "maximum",
                                               "exclusiveMaximum", "maxProperties"};
    if (done.contains(key)) return;
    if (!out.contains(key)) {
        out[key] = value;
        return;
    }
    OrderedJson& own = out[key];
    if (own == value) return;
    const bool is_list = key.ends_with(" of allOf");
    if (larger.contains(key) || smaller.contains(key)) {
        if (!own.is_number() || !value.is_number())
            fail(path, key, text("'", key, "' is no number"), ErrorCode::invalid_argument);
        if ((own < value) == larger.contains(key)) own = value;
    } else if (key == "required") {
        if (!own.is_array() || !value.is_array())
            fail(path, key, "'required' is no list", ErrorCode::invalid_argument);
        for (const OrderedJson& name : value)
            if (std::find(own.begin(), own.end(), name) == own.end()) own.push_back(name);
    } else if (key == "type") {
        own = common_types(own, value);
    } else if (key == "pattern" || key == "format" || key == "multipleOf") {
        OrderedJson& all = out[key + "s of allOf"];
        if (!all.is_array()) all = OrderedJson::array();
        all.push_back(value);
    } else if (is_list) {
        for (const OrderedJson& one : value) own.push_back(one);
    } else if (key == "enum") {
        if (!own.is_array() || !value.is_array())
            fail(path, key, "'enum' is no list", ErrorCode::invalid_argument);
        own = common_values(own, value);
    } else if (key == "const") {
        const OrderedJson kept = common_values(OrderedJson::array({own}),
                                               OrderedJson::array({value}));
        if (!kept.empty()) return;
        out.erase(key);
        out["enum"] = OrderedJson::array();
    } else if (key == "anyOf") {
        OrderedJson crossed = OrderedJson::array();
        for (const OrderedJson& one : own)
            crossed.push_back(
                {{"allOf", OrderedJson::array({one, OrderedJson{{"anyOf", value}}})}});
        own = std::move(crossed);
    } else if (key == "patternProperties") {
        for (const auto& [pattern, schema] : value.items())
            own[pattern] = own.contains(pattern) ? both(own[pattern], schema) : schema;
    } else if (key == "unevaluatedProperties" || key == "unevaluatedItems") {
        own = both(own, value);
    }
}

}  // namespace moex
