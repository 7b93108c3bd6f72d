#include "hub/api/grammar/json_schema.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "hub/api/grammar/schema_document.h"
#include "hub/api/grammar/schema_formats.h"
#include "hub/api/grammar/schema_values.h"
#include "protocol/text.h"

namespace moex {
namespace {

using Kind = GrammarNode::Kind;

constexpr std::uint32_t nodes_max = 50'000, schema_depth_max = 96;

class SchemaCompiler {
  public:
    SchemaCompiler(std::vector<GrammarNode>& nodes, SchemaDocument& document)
        : nodes_(nodes),
          document_(document),
          name_(document.name()) {}

    NodeId run(const OrderedJson& schema) { return compile(schema, name_); }

  private:
    [[noreturn]] void fail(const std::string& path, std::string_view keyword, std::string_view what,
                           ErrorCode code = ErrorCode::unsupported) const {
        document_.fail(path, keyword, what, code);
    }

    NodeId add(GrammarNode node) {
        if (nodes_.size() >= nodes_max) document_.fail_limit(name_, "too large");
        nodes_.push_back(std::move(node));
        return static_cast<NodeId>(nodes_.size() - 1);
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
        if (depth_ >= schema_depth_max) document_.fail_limit(path, "too deep");
        ++depth_;
        std::vector<NodeId> children = document_.reading().weakens ? weakened(schema, path)
                                                                   : alternatives(schema, path);
        --depth_;
        nodes_[id].children = std::move(children);
        return id;
    }

    // Compiles a schema without the keywords that fail. If the failing keyword is not at this
    // level, only the types of the schema are left.
    std::vector<NodeId> weakened(const OrderedJson& schema, const std::string& path) {
        constexpr int keywords_max = 24;
        const OrderedJson* left = &schema;
        const std::uint32_t depth = depth_;
        for (int i = 0; i < keywords_max; ++i) {
            try {
                return alternatives(*left, path);
            } catch (const SchemaFailure& failure) {
                if (failure.is_limit) throw;
                depth_ = depth;
                document_.weaken(path, failure.keyword);
                if (failure.keyword.empty() || !left->is_object() ||
                    !left->contains(failure.keyword))
                    break;
                OrderedJson rest = *left;
                rest.erase(failure.keyword);
                left = &document_.keep(std::move(rest));
            }
        }
        OrderedJson types = OrderedJson::object();
        if (left->is_object() && left->contains("type")) types["type"] = (*left)["type"];
        try {
            return typed(document_.keep(std::move(types)), path);
        } catch (const SchemaFailure& failure) {
            if (failure.is_limit) throw;
            document_.weaken(path, failure.keyword);
            return {any_value()};
        }
    }

    std::vector<NodeId> alternatives(const OrderedJson& schema, const std::string& path) {
        if (schema.is_boolean()) {
            if (!schema.get<bool>()) return {};
            return {any_value()};
        }
        if (auto known = document_.plain(schema, path))
            return {compile(document_.keep(*std::move(known)), path)};

        if (schema.contains("$ref") && !SchemaDocument::has_meaning_beside(schema, "$ref")) {
            // The function resolve() refuses a $ref that is no string.
            const OrderedJson& target = document_.resolve(schema, path);
            return {compile(target, schema["$ref"].get<std::string>())};
        }
        if (schema.contains("$ref") || schema.contains("allOf"))
            return {compile(document_.keep(document_.flattened(schema, path)), path)};
        if (const auto any = schema.find("anyOf"); any != schema.end())
            return any_of(schema, *any, path);
        if (schema.contains("enum") || schema.contains("const")) return {values(schema, path)};
        return typed(schema, path);
    }

    std::vector<NodeId> any_of(const OrderedJson& schema, const OrderedJson& list,
                               const std::string& path) {
        if (!list.is_array() || list.empty())
            fail(path, "anyOf", "'anyOf' is no list", ErrorCode::invalid_argument);
        std::vector<NodeId> out;
        const bool alone = !SchemaDocument::has_meaning_beside(schema, "anyOf");
        OrderedJson rest = schema;
        rest.erase("anyOf");
        for (std::size_t i = 0; i < list.size(); ++i) {
            const std::string place = text(path, ".anyOf[", i, "]");
            if (alone) {
                out.push_back(compile(list[i], place));
                continue;
            }
            OrderedJson branch = document_.merged(rest, document_.flattened(list[i], place), path);
            out.push_back(compile(document_.keep(std::move(branch)), place));
        }
        return out;
    }

    // ---- Listed values (`enum`, `const`): the values that the other keywords of the schema allow.
    NodeId values(const OrderedJson& schema, const std::string& path) {
        OrderedJson list = schema.contains("enum") ? schema["enum"] : OrderedJson::array();
        if (!list.is_array()) fail(path, "enum", "'enum' is no list", ErrorCode::invalid_argument);
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
            return document_.resolve(reference, path);
        };
        std::vector<std::string> texts;
        for (const OrderedJson& one : list) {
            const auto admits = schema_admits(rest, one, find);
            if (!admits.ok()) fail(path, "enum", admits.error().message, admits.error().code);
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
                    fail(path, "type", "'type' is no type of JSON", ErrorCode::invalid_argument);
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
            fail(path, name, text("'", name, "' is no whole number from 0"),
                 ErrorCode::invalid_argument);
        return static_cast<std::uint32_t>(std::min<std::int64_t>(*number, unbounded - 1));
    }

    NodeId string(const OrderedJson& schema, const std::string& path) {
        const std::uint32_t min = count(schema, "minLength", 0, path);
        const std::uint32_t max = count(schema, "maxLength", unbounded, path);
        if (auto counted = counted_text(schema, min, max)) return quoted(*std::move(counted));
        const auto texts = string_texts(schema);
        const char* const source = schema.contains("pattern") ? "pattern" : "format";
        if (!texts.ok()) fail(path, source, texts.error().message, texts.error().code);

        GrammarNode inside{.kind = Kind::text, .escaped = true};
        if (*texts == any_text()) {
            inside.min = min;
            inside.max = max;
            inside.texts = *texts;
        } else if (min == 0 && max == unbounded) {
            inside.texts = *texts;
        } else {
            const auto bounded = with_length(**texts, min, max);
            if (!bounded.ok()) fail(path, source, bounded.error().message, bounded.error().code);
            inside.texts = *bounded;
        }
        return quoted(std::move(inside));
    }

    NodeId quoted(GrammarNode inside) {
        const NodeId quote = add_words({"\""}), words = add(std::move(inside));
        return add({.kind = Kind::sequence, .children = {quote, words, quote}});
    }

    // Returns the node of a pattern that only repeats one class of characters, e.g. ^.{1,1000}$.
    // The node counts the characters, which an automaton would need a state each for. nullopt: the
    // pattern has another form, or a character of the class may need more than one byte.
    static std::optional<GrammarNode> counted_text(const OrderedJson& schema, std::uint32_t min,
                                                   std::uint32_t max) {
        const auto pattern = schema.find("pattern");
        if (pattern == schema.end() || !pattern->is_string() ||
            schema.contains("patterns of allOf") || has_known_format(schema))
            return std::nullopt;
        const auto parsed = parse_pattern(pattern->get_ref<const std::string&>());
        if (!parsed.ok() || parsed->kind != Expression::Kind::sequence ||
            parsed->parts.size() != 3 || parsed->parts[0].kind != Expression::Kind::text_begin ||
            parsed->parts[2].kind != Expression::Kind::text_end)
            return std::nullopt;
        const Expression& repeat = parsed->parts[1];
        if (repeat.kind != Expression::Kind::repeat ||
            repeat.parts[0].kind != Expression::Kind::characters)
            return std::nullopt;
        const std::vector<CodePoints>& ranges = repeat.parts[0].ranges;
        const bool has_plain_byte = std::any_of(
            ranges.begin(), ranges.end(), [](const CodePoints& range) {
                constexpr char32_t plain_first = '#', plain_last = '[';
                return range.first <= plain_last && range.last >= plain_first;
            });
        auto texts = automaton_of(Expression::repeat(repeat.parts[0], 0, unbounded));
        if (!has_plain_byte || !texts.ok()) return std::nullopt;
        return GrammarNode{.kind = Kind::text,
                           .escaped = true,
                           .min = std::max(min, repeat.min),
                           .max = std::min(max, repeat.max),
                           .texts = *std::move(texts)};
    }

    static bool has_known_format(const OrderedJson& schema) {
        if (!schema.contains("format") && !schema.contains("formats of allOf")) return false;
        OrderedJson formats = schema;
        formats.erase("pattern");
        const auto texts = string_texts(formats);
        return !texts.ok() || *texts != any_text();
    }

    // Returns a bound on numbers; nullopt: the schema has no such bound.
    std::optional<Decimal> bound(const OrderedJson& schema, const char* name,
                                 const std::string& path) const {
        const auto found = schema.find(name);
        if (found == schema.end()) return std::nullopt;
        if (!found->is_number())
            fail(path, name, text("'", name, "' is no number"), ErrorCode::invalid_argument);
        if (found->is_number_unsigned()) return Decimal{found->get<std::uint64_t>(), 0};
        if (found->is_number_integer()) return Decimal{found->get<std::int64_t>(), 0};
        return decimal_of(found->get<double>());
    }

    // Returns what numbers of the schema are multiples of, in NumberBounds' units; 0: of nothing. A
    // number that is a multiple of an integer is an integer itself.
    Int128 multiple_of(const OrderedJson& schema, const std::string& path, bool& whole) const {
        OrderedJson list = OrderedJson::array();
        if (schema.contains("multipleOf")) list.push_back(schema["multipleOf"]);
        if (const auto more = schema.find("multipleOfs of allOf"); more != schema.end())
            for (const OrderedJson& one : *more) list.push_back(one);
        if (list.empty()) return 0;
        constexpr int fraction_digits = 15;
        constexpr Int128 one_unit = 1'000'000'000'000'000;  // 1 in units of 1e-15
        constexpr Int128 whole_max = 1'000'000'000, fraction_max = 1'000'000;
        Int128 common = whole ? one_unit : 1;
        for (const OrderedJson& one : list) {
            if (!one.is_number() || one.get<double>() <= 0)
                fail(path, "multipleOf", "'multipleOf' is no number above 0",
                     ErrorCode::invalid_argument);
            Decimal step = decimal_of(one.get<double>());
            if (step.exponent < -fraction_digits || one.get<double>() > 1e9)
                fail(
                    path, "multipleOf",
                    "'multipleOf' is supported from 1e-15 to 1e9, with 15 digits behind the point");
            for (int i = -fraction_digits; i < step.exponent; ++i) step.digits *= 10;
            common = common_multiple(common, step.digits);
            const bool is_whole = common % one_unit == 0;
            if (common > (is_whole ? whole_max : fraction_max) * one_unit)
                fail(path, "multipleOf", "'multipleOf' has a common multiple that is too large");
        }
        if (common % one_unit != 0) return common;
        whole = true;
        return common / one_unit;
    }

    NodeId number(const OrderedJson& schema, const std::string& path, bool whole) {
        NumberBounds bounds{.minimum = bound(schema, "minimum", path),
                            .exclusive_minimum = bound(schema, "exclusiveMinimum", path),
                            .maximum = bound(schema, "maximum", path),
                            .exclusive_maximum = bound(schema, "exclusiveMaximum", path)};
        bounds.multiple_of = multiple_of(schema, path, whole);
        if (whole) add_format_bounds(schema, bounds);
        if (whole && integers_are_too_long(bounds))
            fail(path, bounds.minimum || bounds.exclusive_minimum ? "minimum" : "maximum",
                 "integers of more than 37 digits are not supported");
        const auto rule = number_rule(whole, bounds);
        if (!rule) return add({});
        return add({.kind = Kind::number, .number = *rule});
    }

    // Bounds integers by a format of OpenAPI, where the schema itself sets no bound.
    static void add_format_bounds(const OrderedJson& schema, NumberBounds& bounds) {
        const auto format = schema.find("format");
        if (format == schema.end()) return;
        constexpr std::pair<const char*, int> widths[] = {
            {"int8", 7},  {"int16", 15},  {"int32", 31},  {"int64", 63},
            {"uint8", 8}, {"uint16", 16}, {"uint32", 32}, {"uint64", 64}};
        for (const auto& [name, bits] : widths) {
            if (*format != name) continue;
            const Int128 end = Int128{1} << bits;
            if (!bounds.minimum && !bounds.exclusive_minimum)
                bounds.minimum = Decimal{*name == 'u' ? 0 : -end, 0};
            if (!bounds.maximum && !bounds.exclusive_maximum) bounds.maximum = Decimal{end - 1, 0};
        }
    }

    // ---- Objects.
    NodeId object(const OrderedJson& schema, const std::string& path) {
        GrammarNode node{.kind = Kind::object};
        const FurtherMembers further = further_members(schema, path);
        if (const auto declared = schema.find("properties"); declared != schema.end()) {
            if (!declared->is_object())
                fail(path, "properties", "'properties' is no object", ErrorCode::invalid_argument);
            for (const auto& [name, value] : declared->items()) {
                const OrderedJson* meant = &value;
                if (schema.contains("patternProperties"))
                    meant = &document_.keep(document_.with_patterns(schema, name, value, path));
                node.properties.push_back(
                    {.name = name, .value = compile(*meant, text(path, ".properties.", name))});
            }
        }
        node.rest = further.value;
        node.texts = further.names;
        if (node.texts) node.name_choices = name_choices_of(*node.texts);

        if (const auto required = schema.find("required"); required != schema.end()) {
            if (!required->is_array())
                fail(path, "required", "'required' is no list", ErrorCode::invalid_argument);
            for (const OrderedJson& name : *required) {
                if (!name.is_string())
                    fail(path, "required", "'required' holds no names",
                         ErrorCode::invalid_argument);
                require(node, schema, name.get<std::string>(), path);
            }
        }
        return bounded_object(std::move(node), schema, path);
    }

    void require(GrammarNode& node, const OrderedJson& schema, const std::string& name,
                 const std::string& path) {
        const auto found = std::find_if(
            node.properties.begin(), node.properties.end(),
            [&](const GrammarNode::Property& one) { return one.name == name; });
        if (found != node.properties.end()) {
            found->required = true;
            return;
        }
        const OrderedJson& value = document_.keep(document_.schema_of_member(schema, name, path));
        node.properties.push_back({.name = name,
                                   .value = compile(value, text(path, ".required.", name)),
                                   .required = true});
    }

    struct FurtherMembers {
        NodeId value = GrammarNode::none;
        SharedAutomaton names = {};  // null: any name
    };
    // Returns the members that an object may have in addition to the declared members.
    FurtherMembers further_members(const OrderedJson& schema, const std::string& path) {
        const auto rest = schema.find("additionalProperties");
        const bool has_rest = rest != schema.end();
        if (const auto patterns = schema.find("patternProperties"); patterns != schema.end())
            return patterned_members(schema, *patterns, path);
        if (has_rest) return {compile(*rest, text(path, ".additionalProperties"))};
        if (document_.is_closed(schema)) return {};
        return {any_value()};
    }

    // With `patternProperties`, a further member has a name that some pattern matches, and a value
    // that fits the schemas of all patterns. If the schema also allows other names, any name is
    // allowed for such a value.
    FurtherMembers patterned_members(const OrderedJson& schema, const OrderedJson& patterns,
                                     const std::string& path) {
        if (!patterns.is_object())
            fail(path, "patternProperties", "'patternProperties' is no object",
                 ErrorCode::invalid_argument);
        const auto rest = schema.find("additionalProperties");
        const bool takes_other = rest != schema.end() && *rest != false;
        OrderedJson values = OrderedJson::array();
        const OrderedJson* only = nullptr;  // the place of the value in the document
        Expression names = Expression::of(Expression::Kind::choice, {});
        for (const auto& [pattern, value] : patterns.items()) {
            if (value == false && !takes_other) continue;
            auto parsed = parse_pattern(pattern);
            if (!parsed.ok())
                fail(path, "patternProperties", parsed.error().message, parsed.error().code);
            names.parts.push_back(*std::move(parsed));
            if (std::find(values.begin(), values.end(), value) != values.end()) continue;
            values.push_back(value);
            only = &value;
        }
        if (takes_other && *rest != true) values.push_back(*rest);
        // A single value is compiled where it is, so that it may refer to itself.
        const bool is_single = values.size() == 1 && only;
        const NodeId value = compile(
            is_single ? *only : document_.keep(OrderedJson{{"allOf", std::move(values)}}),
            text(path, ".patternProperties"));
        if (takes_other) return {value};
        if (names.parts.empty()) return {};

        const auto texts = automaton_of_search(names);
        if (!texts.ok()) fail(path, "patternProperties", texts.error().message, texts.error().code);
        constexpr std::uint32_t choices_min = 2;
        if ((*texts)->num_states() > 0 && name_choices_of(**texts) >= choices_min)
            return {value, *texts};
        // The names may run out. Without `additionalProperties` any name is valid, too.
        if (rest == schema.end()) return {value};
        fail(path, "patternProperties",
             "'patternProperties' whose names have a bounded length is not supported beside "
             "'additionalProperties': false");
    }

    // Applies `minProperties` and `maxProperties`. Declared members may be left out, so a bound
    // that concerns them needs one object for each choice.
    NodeId bounded_object(GrammarNode node, const OrderedJson& schema, const std::string& path) {
        const std::uint32_t min = count(schema, "minProperties", 0, path);
        const std::uint32_t max = count(schema, "maxProperties", unbounded, path);
        std::vector<std::size_t> optional;
        for (std::size_t i = 0; i < node.properties.size(); ++i)
            if (!node.properties[i].required) optional.push_back(i);
        const auto all = static_cast<std::uint32_t>(node.properties.size());
        const std::uint32_t sure = all - static_cast<std::uint32_t>(optional.size());
        if (max != unbounded && max < all && !optional.empty())
            fail(path, "maxProperties",
                 "'maxProperties' below the number of declared members is not supported");
        if (max < sure) return add({});
        if (max != unbounded) node.max = max - all;
        if (node.max == 0) node.rest = GrammarNode::none;
        if (min <= sure) return add(std::move(node));
        if (optional.empty()) {
            node.min = min - sure;
            return add(std::move(node));
        }
        if (min > sure + 1)
            fail(path, "minProperties",
                 text("'minProperties' more than one above the number of required members is not "
                      "supported beside optional ones"));
        return one_more(std::move(node), optional);
    }

    // Returns a choice of objects with at least one member that is not required: one object for
    // each such member that may be the first.
    NodeId one_more(GrammarNode node, const std::vector<std::size_t>& optional) {
        std::vector<NodeId> objects;
        for (const std::size_t first : optional) {
            GrammarNode object = node;
            object.properties[first].required = true;
            remove_optional(object, first);
            objects.push_back(add(std::move(object)));
        }
        if (node.rest != GrammarNode::none) {
            remove_optional(node, node.properties.size());
            node.min = 1;
            objects.push_back(add(std::move(node)));
        }
        return add({.kind = Kind::choice, .children = std::move(objects)});
    }

    // Forbids the optional members of an object before the member `end`.
    static void remove_optional(GrammarNode& object, std::size_t end) {
        std::vector<GrammarNode::Property> kept;
        for (std::size_t i = 0; i < object.properties.size(); ++i) {
            GrammarNode::Property& one = object.properties[i];
            if (i < end && !one.required)
                object.forbidden_names.push_back(one.name);
            else
                kept.push_back(std::move(one));
        }
        object.properties = std::move(kept);
    }

    NodeId array(const OrderedJson& schema, const std::string& path) {
        GrammarNode node{.kind = Kind::array};
        node.min = count(schema, "minItems", 0, path);
        node.max = count(schema, "maxItems", unbounded, path);
        if (const auto prefix = schema.find("prefixItems"); prefix != schema.end()) {
            if (!prefix->is_array())
                fail(path, "prefixItems", "'prefixItems' is no list", ErrorCode::invalid_argument);
            for (std::size_t i = 0; i < prefix->size(); ++i)
                node.children.push_back(compile((*prefix)[i], text(path, ".prefixItems[", i, "]")));
        }
        const auto items = schema.find("items");
        node.rest = items == schema.end() ? any_value() : compile(*items, text(path, ".items"));
        return add(std::move(node));
    }

    std::vector<GrammarNode>& nodes_;
    SchemaDocument& document_;
    const std::string& name_;
    std::map<const OrderedJson*, NodeId> known_;
    NodeId any_value_ = GrammarNode::none;
    std::uint32_t depth_ = 0;
};

}  // namespace

Result<NodeId> add_schema(std::vector<GrammarNode>& nodes, const OrderedJson& schema,
                          std::string_view name, SchemaReading reading,
                          std::vector<Weakening>* weakened) {
    return add_schema_part(nodes, schema, schema, name, reading, weakened);
}

Result<NodeId> add_schema_part(std::vector<GrammarNode>& nodes, const OrderedJson& root,
                               const OrderedJson& part, std::string_view name,
                               SchemaReading reading, std::vector<Weakening>* weakened) {
    try {
        SchemaDocument document(root, name, reading, weakened);
        return SchemaCompiler(nodes, document).run(part);
    } catch (const SchemaFailure& failure) {
        return failure.error;
    }
}

Result<NodeId> add_weakened_schema(std::vector<GrammarNode>& nodes, const OrderedJson& schema,
                                   std::string_view name, bool closes_objects,
                                   std::vector<Weakening>& weakened) {
    // Compile the schema alone first: a grammar that is too large, or without any text, would fail
    // only with the whole grammar of the answer. Without branches the grammar is smaller.
    for (const bool branches : {true, false}) {
        const SchemaReading reading{
            .weakens = true, .closes_objects = closes_objects, .branches = branches};
        std::vector<Weakening> found;
        if (!grammar_of_schema(schema, name, reading, &found).ok()) continue;
        weakened.insert(weakened.end(), found.begin(), found.end());
        return add_schema(nodes, schema, name, reading);
    }
    weakened.push_back({"", "schema"});
    static const OrderedJson any_object{{"type", "object"}};
    return add_schema(nodes, any_object, name);
}

Result<std::shared_ptr<const Grammar>> grammar_of_schema(const OrderedJson& schema,
                                                         std::string_view name,
                                                         SchemaReading reading,
                                                         std::vector<Weakening>* weakened) {
    std::vector<GrammarNode> nodes;
    MOEX_ASSIGN(root, add_schema(nodes, schema, name, reading, weakened));
    auto grammar = Grammar::build(std::move(nodes), root);
    if (!grammar.ok())
        return Error{grammar.error().code, text(name, ": ", grammar.error().message)};
    return grammar;
}

}  // namespace moex
