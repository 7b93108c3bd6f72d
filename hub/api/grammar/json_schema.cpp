#include "hub/api/grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "hub/api/grammar/schema_formats.h"
#include "hub/api/grammar/schema_values.h"
#include "protocol/text.h"

namespace moex {
namespace {

using Kind = GrammarNode::Kind;

constexpr std::uint32_t merges_max = 2000, nodes_max = 50'000, schema_depth_max = 96;

// Keywords that restrict values and are not supported; a schema that has one is refused.
constexpr std::array refused_keywords{"not",
                                      "oneOf",
                                      "if",
                                      "then",
                                      "else",
                                      "patternProperties",
                                      "contains",
                                      "minContains",
                                      "maxContains",
                                      "multipleOf",
                                      "propertyNames",
                                      "unevaluatedProperties",
                                      "$dynamicRef",
                                      "$recursiveRef",
                                      "unevaluatedItems",
                                      "dependencies",
                                      "dependentRequired",
                                      "dependentSchemas",
                                      "additionalItems",
                                      "disallow",
                                      "extends"};

// Keywords that restrict values and are supported. If a schema has such a keyword beside a `$ref`
// or an `allOf`, both are merged into one schema.
constexpr std::array meaning_keywords{"type",
                                      "enum",
                                      "const",
                                      "properties",
                                      "required",
                                      "items",
                                      "anyOf",
                                      "allOf",
                                      "minItems",
                                      "maxItems",
                                      "prefixItems",
                                      "minLength",
                                      "maxLength",
                                      "minimum",
                                      "maximum",
                                      "exclusiveMinimum",
                                      "exclusiveMaximum",
                                      "pattern",
                                      "format",
                                      "$ref",
                                      "additionalProperties"};

struct Failure {
    Error error;
};

class SchemaCompiler {
  public:
    SchemaCompiler(std::vector<GrammarNode>& nodes, const OrderedJson& root, std::string_view name)
        : nodes_(nodes),
          root_(root),
          name_(name) {}

    NodeId run() { return compile(root_, name_); }

  private:
    [[noreturn]] void fail(const std::string& path, std::string_view what,
                           ErrorCode code = ErrorCode::unsupported) const {
        throw Failure{{code, text(path, ": ", what)}};
    }

    NodeId add(GrammarNode node) {
        if (nodes_.size() >= nodes_max) fail(name_, "too large");
        nodes_.push_back(std::move(node));
        return static_cast<NodeId>(nodes_.size() - 1);
    }
    NodeId add_choice(std::vector<NodeId> children) {
        if (children.size() == 1) return children[0];
        return add({.kind = Kind::choice, .children = std::move(children)});
    }
    NodeId add_words(const std::vector<std::string>& texts) {
        GrammarNode node{.kind = Kind::words};
        for (const std::string& one : texts) node.words.add(one, 0, 0);
        return add(std::move(node));
    }

    // ---- Compiling one schema. The same place of the document always gives the same node, so that
    // references may be recursive.
    NodeId compile(const OrderedJson& schema, const std::string& path) {
        if (const auto known = known_.find(&schema); known != known_.end()) return known->second;
        const NodeId id = add({});  // a node of kind choice, whose children are added below
        known_.emplace(&schema, id);
        if (++depth_ > schema_depth_max) fail(path, "too deep");
        std::vector<NodeId> children = alternatives(schema, path);
        --depth_;
        nodes_[id].children = std::move(children);
        return id;
    }

    std::vector<NodeId> alternatives(const OrderedJson& schema, const std::string& path) {
        if (schema.is_boolean()) {
            if (!schema.get<bool>()) return {};
            return {any_value()};
        }
        check_keywords(schema, path);

        if (schema.contains("$ref") && !has_meaning_beside(schema, "$ref")) {
            // The function resolve() refuses a $ref that is no string.
            const OrderedJson& target = resolve(schema, path);
            return {compile(target, schema["$ref"].get<std::string>())};
        }
        if (schema.contains("$ref") || schema.contains("allOf"))
            return {compile(keep(flattened(schema, path)), path)};
        if (const auto any = schema.find("anyOf"); any != schema.end())
            return any_of(schema, *any, path);
        if (schema.contains("enum") || schema.contains("const")) return {values(schema, path)};
        return typed(schema, path);
    }

    const OrderedJson& keep(OrderedJson schema) {
        if (++merges_ > merges_max) fail(name_, "too large after its parts are merged");
        made_.push_back(std::move(schema));
        return made_.back();
    }

    bool has_meaning_beside(const OrderedJson& schema, std::string_view keyword) const {
        return std::any_of(meaning_keywords.begin(), meaning_keywords.end(), [&](const char* name) {
            return name != keyword && schema.contains(name);
        });
    }

    // ---- Checks of keywords and references.
    void check_keywords(const OrderedJson& schema, const std::string& path) const {
        if (!schema.is_object())
            fail(path, "a schema is an object, true or false", ErrorCode::invalid_argument);
        for (const char* name : refused_keywords)
            if (schema.contains(name)) fail(path, text("'", name, "' is not supported"));
        for (const char* name : {"uniqueItems", "minProperties", "maxProperties"})
            if (const auto found = schema.find(name);
                found != schema.end() && *found != false && *found != 0)
                fail(path, text("'", name, "' is not supported"));
        if (const auto items = schema.find("items"); items != schema.end() && items->is_array())
            fail(path, "'items' as a list is not supported; use 'prefixItems'");
    }

    // Returns the place of the document that a `$ref` names: a JSON pointer (RFC 6901) after '#'.
    const OrderedJson& resolve(const OrderedJson& schema, const std::string& path) const {
        const OrderedJson& ref = schema["$ref"];
        if (!ref.is_string()) fail(path, "'$ref' is no string", ErrorCode::invalid_argument);
        const auto& target = ref.get_ref<const std::string&>();
        if (target != "#" && !target.starts_with("#/"))
            fail(path, text("'$ref' to ", target.substr(0, 80),
                            " is not supported: only places of this document are"));

        const OrderedJson* at = &root_;
        std::size_t begin = 2;
        while (begin <= target.size() && target != "#") {
            const std::size_t end = std::min(target.find('/', begin), target.size());
            std::string token = target.substr(begin, end - begin);
            for (const auto& [from, to] : {std::pair("~1", "/"), std::pair("~0", "~")})
                for (std::size_t i = token.find(from); i != std::string::npos;
                     i = token.find(from, i + 1))
                    token.replace(i, 2, to);
            if (at->is_object() && at->contains(token))
                at = &(*at)[token];
            else if (at->is_array() && !token.empty() && token.size() < 6 &&
                     token.find_first_not_of("0123456789") == std::string::npos &&
                     std::stoul(token) < at->size())
                at = &(*at)[std::stoul(token)];
            else
                fail(path, text("'$ref' to ", target.substr(0, 80), ", which does not exist"),
                     ErrorCode::invalid_argument);
            begin = end + 1;
        }
        return *at;
    }

    // Returns the schema without `$ref` and `allOf` at its top level: both are merged into the
    // other keywords of the schema.
    OrderedJson flattened(const OrderedJson& schema, const std::string& path) {
        if (schema.is_boolean()) return schema;
        check_keywords(schema, path);
        if (++depth_ > schema_depth_max)
            fail(path, "refers to itself in a way that is not supported");
        OrderedJson rest = schema;
        rest.erase("$ref");
        rest.erase("allOf");
        if (schema.contains("$ref"))
            rest = merged(rest, flattened(resolve(schema, path), path), path);
        if (const auto all = schema.find("allOf"); all != schema.end()) {
            if (!all->is_array() || all->empty())
                fail(path, "'allOf' is no list", ErrorCode::invalid_argument);
            for (std::size_t i = 0; i < all->size(); ++i)
                rest = merged(rest, flattened((*all)[i], text(path, ".allOf[", i, "]")), path);
        }
        --depth_;
        return rest;
    }

    static OrderedJson both(const OrderedJson& a, const OrderedJson& b) {
        if (a == b || b == true) return a;
        if (a == true) return b;
        return {{"allOf", OrderedJson::array({a, b})}};
    }

    // Returns a schema that accepts what both `a` and `b` accept. A nested schema that `a` and `b`
    // both have becomes an `allOf`, which is merged later, when the nested schema is compiled.
    OrderedJson merged(const OrderedJson& a, const OrderedJson& b, const std::string& path) {
        if (a == false || b == false) return false;
        if (a == true) return b;
        if (b == true) return a;
        if (++merges_ > merges_max) fail(path, "too large after its parts are merged");
        OrderedJson out = a;
        merge_members(a, b, out);
        merge_items(a, b, out);
        for (const auto& [key, value] : b.items()) merge_keyword(key, value, out, path);
        return out;
    }

    static void merge_members(const OrderedJson& a, const OrderedJson& b, OrderedJson& out) {
        const auto further = [](const OrderedJson& schema) {
            return schema.contains("additionalProperties") ? schema["additionalProperties"]
                                                           : OrderedJson(true);
        };
        const OrderedJson none = OrderedJson::object();
        const OrderedJson& of_a = a.contains("properties") ? a["properties"] : none;
        const OrderedJson& of_b = b.contains("properties") ? b["properties"] : none;
        if (!of_a.empty() || !of_b.empty()) {
            OrderedJson properties = OrderedJson::object();
            for (const auto& [name, schema] : of_a.items())
                properties[name] = both(schema, of_b.contains(name) ? of_b[name] : further(b));
            for (const auto& [name, schema] : of_b.items())
                if (!of_a.contains(name)) properties[name] = both(schema, further(a));
            out["properties"] = std::move(properties);
        }
        if (a.contains("additionalProperties") || b.contains("additionalProperties"))
            out["additionalProperties"] = both(further(a), further(b));
    }

    static void merge_items(const OrderedJson& a, const OrderedJson& b, OrderedJson& out) {
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

    void merge_keyword(const std::string& key, const OrderedJson& value, OrderedJson& out,
                       const std::string& path) {
        static const std::set<std::string> done{"properties", "additionalProperties", "prefixItems",
                                                "items"};
        static const std::set<std::string> larger{"minLength", "minItems", "minimum",
                                                  "exclusiveMinimum"};
        static const std::set<std::string> smaller{"maxLength", "maxItems", "maximum",
                                                   "exclusiveMaximum"};
        if (done.contains(key)) return;
        if (!out.contains(key)) {
            out[key] = value;
            return;
        }
        OrderedJson& own = out[key];
        if (own == value) return;
        if (larger.contains(key) || smaller.contains(key)) {
            if (!own.is_number() || !value.is_number())
                fail(path, text("'", key, "' is no number"), ErrorCode::invalid_argument);
            if ((own < value) == larger.contains(key)) own = value;
        } else if (key == "required") {
            for (const OrderedJson& name : value)
                if (std::find(own.begin(), own.end(), name) == own.end()) own.push_back(name);
        } else if (key == "type") {
            own = common_types(own, value);
        } else if (key == "pattern" || key == "format") {
            OrderedJson& all = out[key + "s of allOf"];
            if (!all.is_array()) all = OrderedJson::array();
            all.push_back(value);
        } else if (key ==
                       "pattern"
                       "s of allOf" ||
                   key ==
                       "format"
                       "s of allOf") {
            for (const OrderedJson& one : value) own.push_back(one);
        } else if (key == "enum" || key == "const") {
            const OrderedJson list = key == "enum" ? value : OrderedJson::array({value});
            OrderedJson kept = OrderedJson::array();
            for (const OrderedJson& one : key == "enum" ? own : OrderedJson::array({own}))
                for (const OrderedJson& other : list)
                    if (same_value(one, other)) {
                        kept.push_back(one);
                        break;
                    }
            out.erase(key);
            out["enum"] = std::move(kept);
        } else if (key == "anyOf") {
            OrderedJson crossed = OrderedJson::array();
            for (const OrderedJson& one : own)
                crossed.push_back(
                    {{"allOf", OrderedJson::array({one, OrderedJson{{"anyOf", value}}})}});
            own = std::move(crossed);
        }
    }

    static OrderedJson common_types(const OrderedJson& a, const OrderedJson& b) {
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

    std::vector<NodeId> any_of(const OrderedJson& schema, const OrderedJson& list,
                               const std::string& path) {
        if (!list.is_array() || list.empty())
            fail(path, "'anyOf' is no list", ErrorCode::invalid_argument);
        std::vector<NodeId> out;
        const bool alone = !has_meaning_beside(schema, "anyOf");
        OrderedJson rest = schema;
        rest.erase("anyOf");
        for (std::size_t i = 0; i < list.size(); ++i) {
            const std::string place = text(path, ".anyOf[", i, "]");
            out.push_back(
                alone ? compile(list[i], place)
                      : compile(keep(merged(rest, flattened(list[i], place), path)), place));
        }
        return out;
    }

    // ---- Listed values (`enum`, `const`): the values that the other keywords of the schema allow.
    NodeId values(const OrderedJson& schema, const std::string& path) {
        OrderedJson list = schema.contains("enum") ? schema["enum"] : OrderedJson::array();
        if (!list.is_array()) fail(path, "'enum' is no list", ErrorCode::invalid_argument);
        if (schema.contains("const")) {
            const OrderedJson& only = schema["const"];
            const bool listed = !schema.contains("enum") ||
                                std::any_of(list.begin(), list.end(), [&](const OrderedJson& one) {
                                    return same_value(one, only);
                                });
            list = listed ? OrderedJson::array({only}) : OrderedJson::array();
        }

        OrderedJson rest = schema;
        rest.erase("enum");
        rest.erase("const");
        const auto find = [&](const OrderedJson& reference) -> const OrderedJson& {
            return resolve(reference, path);
        };
        std::vector<std::string> texts;
        for (const OrderedJson& one : list) {
            const auto admits = schema_admits(rest, one, find);
            if (!admits.ok()) fail(path, admits.error().message, admits.error().code);
            if (*admits) texts.push_back(json_text(one));
        }
        return add_words(texts);
    }

    // ---- Types.
    std::vector<NodeId> typed(const OrderedJson& schema, const std::string& path) {
        std::set<std::string> types;
        if (const auto type = schema.find("type"); type == schema.end()) {
            types = {"object", "array", "string", "number", "boolean", "null"};
        } else {
            for (const OrderedJson& one : type->is_array() ? *type : OrderedJson::array({*type})) {
                static const std::set<std::string> known{"object",  "array",   "string", "number",
                                                         "integer", "boolean", "null"};
                if (!one.is_string() || !known.contains(one.get<std::string>()))
                    fail(path, "'type' is no type of JSON", ErrorCode::invalid_argument);
                types.insert(one.get<std::string>());
            }
        }

        std::vector<NodeId> out;
        std::vector<std::string> words;
        if (types.contains("boolean")) words = {"true", "false"};
        if (types.contains("null")) words.emplace_back("null");
        if (!words.empty()) out.push_back(add_words(words));
        if (types.contains("string")) out.push_back(string(schema, path));
        if (types.contains("number"))
            out.push_back(number(schema, path, false));
        else if (types.contains("integer"))
            out.push_back(number(schema, path, true));
        if (types.contains("object")) out.push_back(object(schema, path));
        if (types.contains("array")) out.push_back(array(schema, path));
        return out;
    }

    NodeId any_value() {
        if (any_value_ == GrammarNode::none) {
            static const OrderedJson anything = OrderedJson::object();
            any_value_ = add({});
            known_.emplace(&anything, any_value_);
            std::vector<NodeId> children = typed(anything, name_);
            nodes_[any_value_].children = std::move(children);
        }
        return any_value_;
    }

    std::uint32_t count(const OrderedJson& schema, const char* name, std::uint32_t otherwise,
                        const std::string& path) const {
        const auto found = schema.find(name);
        if (found == schema.end()) return otherwise;
        const auto number = whole_number(*found);
        if (!number || *number < 0)
            fail(path, text("'", name, "' is no whole number from 0"), ErrorCode::invalid_argument);
        return static_cast<std::uint32_t>(std::min<std::int64_t>(*number, unbounded - 1));
    }

    NodeId string(const OrderedJson& schema, const std::string& path) {
        const std::uint32_t min = count(schema, "minLength", 0, path);
        const std::uint32_t max = count(schema, "maxLength", unbounded, path);
        const auto texts = string_texts(schema);
        if (!texts.ok()) fail(path, texts.error().message, texts.error().code);

        GrammarNode inside{.kind = Kind::text, .escaped = true};
        if (*texts == any_text()) {
            inside.min = min;
            inside.max = max;
            inside.texts = *texts;
        } else if (min == 0 && max == unbounded) {
            inside.texts = *texts;
        } else {
            const auto bounded = with_length(**texts, min, max);
            if (!bounded.ok()) fail(path, bounded.error().message, bounded.error().code);
            inside.texts = *bounded;
        }
        const NodeId quote = add_words({"\""}), words = add(std::move(inside));
        return add({.kind = Kind::sequence, .children = {quote, words, quote}});
    }

    NodeId number(const OrderedJson& schema, const std::string& path, bool whole) {
        const auto bound = [&](const char* name) -> std::optional<double> {
            const auto found = schema.find(name);
            if (found == schema.end()) return std::nullopt;
            if (!found->is_number())
                fail(path, text("'", name, "' is no number"), ErrorCode::invalid_argument);
            return found->get<double>();
        };
        const auto rule = number_rule(whole, bound("minimum"), bound("exclusiveMinimum"),
                                      bound("maximum"), bound("exclusiveMaximum"));
        if (!rule) return add({});
        return add({.kind = Kind::number, .number = *rule});
    }

    NodeId object(const OrderedJson& schema, const std::string& path) {
        std::vector<GrammarNode::Property> properties;
        if (const auto declared = schema.find("properties"); declared != schema.end()) {
            if (!declared->is_object())
                fail(path, "'properties' is no object", ErrorCode::invalid_argument);
            for (const auto& [name, value] : declared->items())
                properties.push_back(
                    {.name = name, .value = compile(value, text(path, ".properties.", name))});
        }

        NodeId rest = any_value();
        if (const auto further = schema.find("additionalProperties"); further != schema.end())
            rest = compile(*further, text(path, ".additionalProperties"));

        if (const auto required = schema.find("required"); required != schema.end()) {
            if (!required->is_array())
                fail(path, "'required' is no list", ErrorCode::invalid_argument);
            for (const OrderedJson& name : *required) {
                if (!name.is_string())
                    fail(path, "'required' holds no names", ErrorCode::invalid_argument);
                const auto found = std::find_if(
                    properties.begin(), properties.end(),
                    [&](const GrammarNode::Property& one) { return one.name == name; });
                if (found != properties.end())
                    found->required = true;
                else
                    properties.push_back(
                        {.name = name.get<std::string>(), .value = rest, .required = true});
            }
        }
        return add({.kind = Kind::object, .rest = rest, .properties = std::move(properties)});
    }

    NodeId array(const OrderedJson& schema, const std::string& path) {
        GrammarNode node{.kind = Kind::array};
        node.min = count(schema, "minItems", 0, path);
        node.max = count(schema, "maxItems", unbounded, path);
        if (const auto prefix = schema.find("prefixItems"); prefix != schema.end()) {
            if (!prefix->is_array())
                fail(path, "'prefixItems' is no list", ErrorCode::invalid_argument);
            for (std::size_t i = 0; i < prefix->size(); ++i)
                node.children.push_back(compile((*prefix)[i], text(path, ".prefixItems[", i, "]")));
        }
        const auto items = schema.find("items");
        node.rest = items == schema.end() ? any_value() : compile(*items, text(path, ".items"));
        return add(std::move(node));
    }

    std::vector<GrammarNode>& nodes_;
    const OrderedJson& root_;
    std::string name_;
    std::map<const OrderedJson*, NodeId> known_;
    std::deque<OrderedJson> made_;  // merged schemas; a deque, since `known_` keeps their addresses
    NodeId any_value_ = GrammarNode::none;
    std::uint32_t merges_ = 0, depth_ = 0;
};

}  // namespace

Result<NodeId> add_schema(std::vector<GrammarNode>& nodes, const OrderedJson& schema,
                          std::string_view name) {
    try {
        return SchemaCompiler(nodes, schema, name).run();
    } catch (const Failure& failure) {
        return failure.error;
    }
}

Result<std::shared_ptr<const Grammar>> grammar_of_schema(const OrderedJson& schema,
                                                         std::string_view name) {
    std::vector<GrammarNode> nodes;
    MOEX_ASSIGN(root, add_schema(nodes, schema, name));
    auto grammar = Grammar::build(std::move(nodes), root);
    if (!grammar.ok())
        return Error{grammar.error().code, text(name, ": ", grammar.error().message)};
    return grammar;
}

}  // namespace moex
