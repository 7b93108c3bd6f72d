// Translates the keywords of one schema into those that the compiler knows (SchemaDocument::plain).
#include <algorithm>
#include <array>
#include <set>

#include "hub/api/grammar/schema_branches.h"
#include "hub/api/grammar/schema_document.h"
#include "hub/api/grammar/schema_negation.h"
#include "hub/api/grammar/schema_values.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint32_t dependencies_max = 4;  // each doubles the number of branches

// Keywords that have no translation at all.
constexpr std::array refused_keywords{"contains", "minContains", "maxContains", "disallow",
                                      "extends"};
constexpr std::int64_t contains_max = 16;
// Keywords for which the value null means that the keyword is absent. Clients write such nulls.
constexpr std::array nullable_keywords{"type",
                                       "enum",
                                       "properties",
                                       "required",
                                       "items",
                                       "anyOf",
                                       "allOf",
                                       "oneOf",
                                       "minItems",
                                       "maxItems",
                                       "prefixItems",
                                       "minimum",
                                       "maximum",
                                       "minLength",
                                       "maxLength",
                                       "pattern",
                                       "format",
                                       "multipleOf",
                                       "exclusiveMaximum",
                                       "exclusiveMinimum",
                                       "$ref",
                                       "additionalProperties",
                                       "patternProperties",
                                       "minProperties",
                                       "maxProperties",
                                       "propertyNames",
                                       "not",
                                       "uniqueItems"};

bool is_empty_schema(const OrderedJson& schema) {
    return schema == true || (schema.is_object() && schema.empty());
}

OrderedJson without(const std::string& name) { return {{"properties", {{name, false}}}}; }

}  // namespace

class SchemaDocument::Translation {
  public:
    Translation(SchemaDocument& document, const OrderedJson& schema, const std::string& path)
        : document_(document),
          schema_(schema),
          path_(path) {}

    std::optional<OrderedJson> run() {
        if (schema_.is_boolean()) return std::nullopt;
        if (!schema_.is_object())
            document_.fail(path_, {}, "a schema is an object, true or false",
                           ErrorCode::invalid_argument);
        read_nulls();
        read_older_drafts();
        read_references();
        read_dependencies();
        read_condition();
        read_negation();
        read_names();
        read_unevaluated();
        read_contained();
        read_items();
        for (const char* name : refused_keywords)
            if (has(name)) refuse(name);
        read_exclusive();
        if (is_impossible_) return OrderedJson(false);
        return std::move(out_);
    }

  private:
    const OrderedJson& now() const { return out_ ? *out_ : schema_; }
    bool has(std::string_view name) const { return now().contains(name); }
    const OrderedJson& get(std::string_view name) const { return now()[std::string(name)]; }
    OrderedJson& change() {
        if (!out_) out_ = schema_;
        return *out_;
    }
    void drop(const char* name) { change().erase(name); }

    // Refuses a keyword by name, or leaves it out if the reading weakens.
    void refuse(const char* name, std::string_view why = "is not supported") {
        if (!document_.reading().weakens) document_.fail(path_, name, text("'", name, "' ", why));
        document_.weaken(path_, name);
        drop(name);
    }

    // Demands `schema` in addition.
    void demand(OrderedJson schema) {
        OrderedJson& all = change()["allOf"];
        if (!all.is_array()) all = OrderedJson::array();
        all.push_back(std::move(schema));
    }

    void read_nulls() {
        if (!document_.reading().weakens) return;
        for (const char* name : nullable_keywords)
            if (has(name) && get(name).is_null()) {
                document_.weaken(path_, name);
                drop(name);
            }
    }

    // Reads the spellings of draft 4 to 2019-09: lists in `items`, flags in `exclusiveMinimum`.
    void read_older_drafts() {
        if (has("items") && get("items").is_array()) {
            if (has("prefixItems")) document_.fail(path_, "items", "'items' is a list");
            OrderedJson& out = change();
            out["prefixItems"] = out["items"];
            out.erase("items");
            if (out.contains("additionalItems")) out["items"] = out["additionalItems"];
        }
        if (has("additionalItems")) drop("additionalItems");
        for (const auto& [flag, bound] :
             {std::pair("exclusiveMinimum", "minimum"), std::pair("exclusiveMaximum", "maximum")}) {
            if (!has(flag) || !get(flag).is_boolean()) continue;
            OrderedJson& out = change();
            const bool excludes = out[flag] == true && out.contains(bound);
            out.erase(flag);
            if (!excludes) continue;
            out[flag] = out[bound];
            out.erase(bound);
        }
        if (has("patternProperties") && get("patternProperties") == OrderedJson::object())
            drop("patternProperties");
        if (has("minProperties") && get("minProperties") == 0) drop("minProperties");
        if (!has("contains") && has("minContains") && get("minContains") == 0) drop("minContains");
    }

    void read_references() {
        if (has("$recursiveRef") && get("$recursiveRef") == "#" && !has("$ref")) {
            OrderedJson& out = change();
            out["$ref"] = "#";
            out.erase("$recursiveRef");
        }
        for (const char* name : {"$recursiveRef", "$dynamicRef"})
            if (has(name)) refuse(name);
    }

    // If a member is present, further members are required or another schema holds. Either the
    // object has no such member, or the demand is made.
    void read_dependencies() {
        if (has("dependencies")) {
            OrderedJson& out = change();
            const OrderedJson given = out["dependencies"];
            out.erase("dependencies");
            if (given.is_object())
                for (const auto& [name, demand] : given.items())
                    out[demand.is_array() ? "dependentRequired" : "dependentSchemas"][name] =
                        demand;
        }
        std::size_t count = 0;
        for (const char* key : {"dependentRequired", "dependentSchemas"})
            if (has(key)) count += get(key).size();
        for (const char* key : {"dependentRequired", "dependentSchemas"}) {
            if (!has(key)) continue;
            if (!get(key).is_object() || count > dependencies_max) {
                refuse(key, text("with more than ", dependencies_max, " members is not supported"));
                continue;
            }
            const OrderedJson given = get(key);
            drop(key);
            for (const auto& [name, wanted] : given.items()) {
                OrderedJson then = wanted;
                if (*(key + 9) == 'R') then = {{"required", wanted}};
                OrderedJson with{{"required", OrderedJson::array({name})},
                                 {"allOf", OrderedJson::array({std::move(then)})}};
                demand({{"anyOf", OrderedJson::array({without(name), std::move(with)})}});
            }
        }
    }

    void read_condition() {
        if (!has("if") && !has("then") && !has("else")) return;
        const bool is_decided = has("if") && get("if").is_boolean();
        const char* const branch = is_decided && get("if") == false ? "else" : "then";
        if (is_decided && has(branch)) demand(get(branch));
        if (is_decided || !has("if") || (!has("then") && !has("else"))) {
            for (const char* name : {"if", "then", "else"})
                if (has(name)) drop(name);
            return;
        }
        const OrderedJson condition = get("if");
        std::optional<OrderedJson> no;
        if (document_.reading().branches) no = negated_schema(document_, condition, path_);
        if (!no) {
            refuse("if", "is not supported where the condition has no negation");
        } else {
            const auto part = [&](const char* name) {
                return has(name) ? get(name) : OrderedJson(true);
            };
            OrderedJson branches = OrderedJson::array(
                {OrderedJson{{"allOf", OrderedJson::array({condition, part("then")})}},
                 OrderedJson{{"allOf", OrderedJson::array({*std::move(no), part("else")})}}});
            drop("if");
            demand({{"anyOf", std::move(branches)}});
        }
        for (const char* name : {"then", "else"})
            if (has(name)) drop(name);
    }

    void read_negation() {
        if (!has("not")) return;
        const OrderedJson what = get("not");
        if (is_empty_schema(what)) {
            is_impossible_ = true;
        } else if (what == false) {
            drop("not");
        } else if (what.is_object() && what.size() == 1 && what.contains("required") &&
                   what["required"].is_array() && !what["required"].empty()) {
            drop("not");
            OrderedJson branches = OrderedJson::array();
            for (const OrderedJson& name : what["required"])
                if (name.is_string()) branches.push_back(without(name.get<std::string>()));
            demand({{"type", "object"}, {"anyOf", std::move(branches)}});
        } else if (what.is_object() && what.size() == 1 && what.contains("type")) {
            refuse_types(what["type"]);
        } else if (what.is_object() && what.size() == 1 && what.contains("anyOf") &&
                   what["anyOf"].is_array()) {
            drop("not");
            for (const OrderedJson& one : what["anyOf"]) demand({{"not", one}});
        } else {
            refuse_values(what);
        }
    }

    // Reads `not` with nothing but a type: the other types are left.
    void refuse_types(const OrderedJson& type) {
        std::set<std::string> left{"object", "array", "string", "number", "boolean", "null"};
        for (const OrderedJson& one : type.is_array() ? type : OrderedJson::array({type}))
            if (!one.is_string() || left.erase(one.get<std::string>()) == 0) return refuse("not");
        drop("not");
        demand({{"type", std::vector<std::string>(left.begin(), left.end())}});
    }

    // Reads `not` with a list of values, which is possible together with `enum`.
    void refuse_values(const OrderedJson& what) {
        const bool lists = what.is_object() && what.size() == 1 &&
                           (what.contains("const") ||
                            (what.contains("enum") && what["enum"].is_array()));
        if (!lists || !has("enum") || !get("enum").is_array()) return refuse_negated(what);
        const OrderedJson values = what.contains("const") ? OrderedJson::array({what["const"]})
                                                          : what["enum"];
        OrderedJson left = OrderedJson::array();
        for (const OrderedJson& one : get("enum"))
            if (std::none_of(values.begin(), values.end(),
                             [&](const OrderedJson& other) { return same_value(one, other); }))
                left.push_back(one);
        change()["enum"] = std::move(left);
        drop("not");
    }

    void refuse_negated(const OrderedJson& what) {
        std::optional<OrderedJson> no;
        if (document_.reading().branches) no = negated_schema(document_, what, path_);
        if (!no) return refuse("not");
        drop("not");
        demand(*std::move(no));
    }

    // Reads `propertyNames`: names that every text has, a list of names, or a pattern.
    void read_names() {
        if (!has("propertyNames")) return;
        const OrderedJson names = get("propertyNames");
        const bool is_object = names.is_object();
        std::size_t further = names.size();
        for (const char* key : {"type", "description", "title", "$comment"})
            if (is_object && names.contains(key)) --further;
        const bool is_string = !is_object || !names.contains("type") || names["type"] == "string";
        if (is_empty_schema(names) || (is_object && is_string && further == 0))
            return drop("propertyNames");
        if (is_object && is_string && further == 1 && names.contains("pattern") &&
            !has("patternProperties") && get_names().empty()) {
            OrderedJson& out = change();
            const OrderedJson rest = out.contains("additionalProperties")
                                         ? out["additionalProperties"]
                                         : OrderedJson(true);
            if (rest != false) out["patternProperties"] = {{names["pattern"], rest}};
            out["additionalProperties"] = false;
            return drop("propertyNames");
        }
        if (is_object && is_string && further == 1 && names.contains("enum") &&
            names["enum"].is_array() && !has("patternProperties"))
            return list_names(names["enum"]);
        refuse("propertyNames");
    }

    const OrderedJson& get_names() const {
        static const OrderedJson none = OrderedJson::object();
        return has("properties") ? get("properties") : none;
    }

    void list_names(const OrderedJson& list) {
        OrderedJson& out = change();
        const OrderedJson rest = out.contains("additionalProperties") ? out["additionalProperties"]
                                                                      : OrderedJson(true);
        OrderedJson members = OrderedJson::object();
        for (const OrderedJson& name : list)
            if (name.is_string()) {
                const auto& words = name.get_ref<const std::string&>();
                members[words] = get_names().contains(words) ? get_names()[words] : rest;
            }
        out["properties"] = std::move(members);
        out["additionalProperties"] = false;
        drop("propertyNames");
    }

    // Reads the keywords for members and items that no other keyword has seen. Without nested
    // schemas for the same value they are the keywords for all further members and items. With such
    // schemas, `unevaluatedProperties` stays until they are merged.
    void read_unevaluated() {
        bool is_nested = false;
        for (const char* name : {"$ref", "allOf", "anyOf", "oneOf"})
            is_nested = is_nested || has(name);
        for (const auto& [name, simple] :
             {std::pair("unevaluatedProperties", "additionalProperties"),
              std::pair("unevaluatedItems", "items")}) {
            if (!has(name)) continue;
            if (is_empty_schema(get(name)) && !has(simple)) {
                if (!is_nested) change()[simple] = true;
                drop(name);
            } else if (has(simple)) {
                drop(name);
            } else if (!is_nested) {
                OrderedJson& out = change();
                out[simple] = out[name];
                out.erase(name);
            } else if (std::string_view(simple) == "items" || get(name) != false) {
                refuse(name);
            }
        }
    }

    // Reads `contains`: the first items of the array are those that it asks for.
    void read_contained() {
        if (!has("contains") || has("maxContains") || has("prefixItems")) return;
        std::int64_t count = 1;
        if (has("minContains")) {
            const auto given = whole_number(get("minContains"));
            if (!given || *given < 0 || *given > contains_max) return;
            count = *given;
        }
        const OrderedJson wanted = get("contains");
        OrderedJson& out = change();
        for (const char* name : {"contains", "minContains"}) out.erase(name);
        if (count == 0) return;
        const OrderedJson item = out.contains("items") ? out["items"] : OrderedJson(true);
        OrderedJson first = OrderedJson::array();
        for (std::int64_t i = 0; i < count; ++i)
            first.push_back({{"allOf", OrderedJson::array({wanted, item})}});
        out["prefixItems"] = std::move(first);
        demand({{"minItems", count}});
    }

    void read_items() {
        if (!has("uniqueItems")) return;
        const bool is_one = has("maxItems") && get("maxItems").is_number() &&
                            get("maxItems").get<double>() <= 1;
        if (get("uniqueItems") == false || is_one)
            drop("uniqueItems");
        else
            refuse("uniqueItems");
    }

    // Turns `oneOf` into `anyOf`: its branches get the other keywords of the schema, and are
    // narrowed until they exclude each other.
    void read_exclusive() {
        if (!has("oneOf")) return;
        const OrderedJson list = get("oneOf");
        if (!list.is_array() || list.empty())
            document_.fail(path_, "oneOf", "'oneOf' is no list", ErrorCode::invalid_argument);
        OrderedJson rest = now();
        rest.erase("oneOf");
        std::vector<OrderedJson> branches;
        // The probe merges without limits of its own on keywords, so that it only weakens.
        SchemaDocument probe(
            document_.root_, document_.name_,
            {.weakens = true, .closes_objects = document_.reading().closes_objects}, nullptr);
        try {
            const OrderedJson base = probe.flattened(rest, path_);
            for (const OrderedJson& one : list)
                branches.push_back(probe.merged(base, probe.flattened(one, path_), path_));
            if (SchemaBranches(probe, path_).make_exclusive(branches)) {
                narrow_branches(std::move(rest), list, branches);
                return;
            }
        } catch (const SchemaFailure&) {
            // The branches refer to themselves, or are too many: they count as not exclusive.
        }
        if (!document_.reading().weakens)
            document_.fail(path_, "oneOf",
                           "'oneOf' is not supported where a value may fit several branches");
        document_.weaken(path_, "oneOf");
        OrderedJson any{{"anyOf", list}};
        out_ = std::move(rest);
        if (out_->empty())
            out_ = std::move(any);
        else
            demand(std::move(any));
    }

    // Writes the branches as `anyOf`. Each is the given branch, and lacks the members that the
    // exclusive branch lacks.
    void narrow_branches(OrderedJson rest, const OrderedJson& list,
                         const std::vector<OrderedJson>& exclusive) {
        OrderedJson any = OrderedJson::array();
        for (std::size_t i = 0; i < list.size(); ++i) {
            OrderedJson lacking = OrderedJson::object();
            if (exclusive[i].is_object() && exclusive[i].contains("properties"))
                for (const auto& [name, value] : exclusive[i]["properties"].items())
                    if (value == false) lacking[name] = false;
            if (lacking.empty())
                any.push_back(list[i]);
            else
                any.push_back({{"allOf", OrderedJson::array(
                                             {list[i], OrderedJson{{"properties", lacking}}})}});
        }
        out_ = std::move(rest);
        OrderedJson branches{{"anyOf", std::move(any)}};
        if (out_->empty())
            out_ = std::move(branches);
        else
            demand(std::move(branches));
    }

    SchemaDocument& document_;
    const OrderedJson& schema_;
    const std::string& path_;
    std::optional<OrderedJson> out_;
    bool is_impossible_ = false;
};

std::optional<OrderedJson> SchemaDocument::plain(const OrderedJson& schema,
                                                 const std::string& path) {
    return Translation(*this, schema, path).run();
}

}  // namespace moex
