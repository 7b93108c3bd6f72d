#include "hub/api/jobs/call_parameters.h"

#include <algorithm>

#include "hub/api/grammar/schema_document.h"
#include "hub/api/jobs/call_texts.h"
#include "hub/api/jobs/grammar_nodes.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

using Kind = GrammarNode::Kind;
using Nodes = std::vector<GrammarNode>;

// Returns a schema without references at its top level; an empty object if that is not possible.
// `lost` gets the keywords that were left out; it may be null.
OrderedJson resolved(const OrderedJson& root, const OrderedJson& schema,
                     std::vector<Weakening>* lost = nullptr) {
    SchemaDocument document(root, "parameters", {.weakens = true}, lost);
    try {
        const OrderedJson flat = document.flattened(schema, "parameters");
        return flat.is_object() ? flat : OrderedJson::object();
    } catch (const SchemaFailure& failure) {
        if (lost) lost->push_back({"", failure.keyword.empty() ? "schema" : failure.keyword});
        return OrderedJson::object();
    }
}

const OrderedJson& members(const OrderedJson& schema) {
    static const OrderedJson none = OrderedJson::object();
    const OrderedJson& declared = member(schema, "properties");
    return declared.is_object() ? declared : none;
}

// Returns true if a value of the schema may be a text, and then `only`: it can be nothing else.
struct Texts {
    bool possible = false, only = false;
};
Texts texts_of(const OrderedJson& schema) {
    const OrderedJson& type = member(schema, "type");
    if (type == "string") return {true, true};
    if (type.is_array())
        return {std::find(type.begin(), type.end(), "string") != type.end(), false};
    const OrderedJson& list = member(schema, "enum");
    if (type.is_null() && list.is_array() && !list.empty())
        return {false, std::all_of(list.begin(), list.end(),
                                   [](const OrderedJson& one) { return one.is_string(); })};
    return {type.is_null(), false};
}

// Adds a value that is a text, followed by the end tag.
NodeId add_text(Nodes& nodes, const OrderedJson& schema, const CallSyntax& syntax) {
    OrderedJson list = member(schema, "enum");
    if (const OrderedJson& only = member(schema, "const"); only.is_string())
        list = OrderedJson::array({only});
    GrammarNode listed{.kind = Kind::words};
    if (list.is_array())
        for (const OrderedJson& one : list)
            if (one.is_string()) listed.words.add(one.get<std::string>(), 0, 0);
    if (listed.words.words.empty()) return add_text_until(nodes, syntax, syntax.after_value);
    const NodeId value = add_node(nodes, std::move(listed));
    return add_sequence(nodes, {value, add_fixed(nodes, syntax, syntax.after_value)});
}

// Returns true if a grammar of the schema can be built.
bool has_values(const Tool& tool, const OrderedJson& schema, const std::string& where) {
    Nodes alone;
    const auto root = add_schema_part(alone, tool.parameters, schema, where, {.weakens = true});
    return root.ok() && Grammar::build(std::move(alone), *root).ok();
}

Result<NodeId> add_value(Nodes& nodes, const Tool& tool, const OrderedJson& schema,
                         const std::string& name, const CallSyntax& syntax, bool closes_objects,
                         std::vector<Weakening>& weakened) {
    std::vector<Weakening> lost;
    const OrderedJson flat = resolved(tool.parameters, schema, &lost);
    const Texts texts = texts_of(flat);
    if (texts.possible || texts.only) {
        for (const Weakening& one : lost) weakened.push_back({"properties." + name, one.keyword});
        for (const char* key : {"pattern", "minLength", "maxLength"})
            if (flat.contains(key)) weakened.push_back({"properties." + name, key});
        return add_text(nodes, flat, syntax);
    }
    const std::string where = text("tools.", tool.name, ".parameters.properties.", name);
    if (!tool.is_strict && !has_values(tool, schema, where)) {
        weakened.push_back({"properties." + name, "schema"});
        return add_text(nodes, OrderedJson::object(), syntax);
    }
    std::vector<Weakening> found;
    MOEX_ASSIGN(value, add_schema_part(
                           nodes, tool.parameters, schema, where,
                           {.weakens = !tool.is_strict, .closes_objects = closes_objects}, &found));
    for (const Weakening& one : found)
        weakened.push_back(
            {text("properties.", name, one.path.empty() ? "" : ".", one.path), one.keyword});
    return add_sequence(nodes, {value, add_fixed(nodes, syntax, syntax.after_value)});
}

}  // namespace

Result<NodeId> add_parameters(Nodes& nodes, const Tool& tool, const CallSyntax& syntax,
                              bool closes_objects, std::vector<Weakening>& weakened) {
    const OrderedJson schema = resolved(tool.parameters, tool.parameters);
    const OrderedJson& required = member(schema, "required");
    std::vector<NodeId> parts;
    for (const auto& [name, inside] : members(schema).items()) {
        if (inside == false) continue;
        MOEX_ASSIGN(value, add_value(nodes, tool, inside, name, syntax, closes_objects, weakened));
        const NodeId part = add_sequence(
            nodes, {add_fixed(nodes, syntax, syntax.before_key), add_words(nodes, name),
                    add_fixed(nodes, syntax, syntax.before_value), value});
        const bool is_required = std::find(required.begin(), required.end(), name) !=
                                 required.end();
        parts.push_back(
            is_required ? part
                        : add_node(nodes, {.kind = Kind::repeat, .max = 1, .children = {part}}));
    }
    return add_sequence(nodes, std::move(parts));
}

std::string parameter_json(const Tool* tool, const std::string& key, const std::string& value) {
    bool is_text = false;
    if (tool) {
        const OrderedJson schema = resolved(tool->parameters, tool->parameters);
        const OrderedJson& inside = member(members(schema), key);
        is_text = texts_of(resolved(tool->parameters, inside)).only;
    }
    if (!is_text) {
        const auto parsed = parse_strict_json<OrderedJson>(value, "value", {.depth_max = 192});
        if (parsed.ok()) return value;
    }
    return json_string(value);
}

}  // namespace moex
