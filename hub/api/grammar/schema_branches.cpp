#include "hub/api/grammar/schema_branches.h"

#include <algorithm>
#include <limits>
#include <set>

#include "hub/api/grammar/schema_formats.h"
#include "hub/api/grammar/schema_values.h"

namespace moex {
namespace {

constexpr std::uint32_t branch_steps_max = 20'000, branch_depth_max = 16;
constexpr std::size_t branches_max = 64;

struct BranchDepth {  // counts one level of nested schemas while it lives
    explicit BranchDepth(std::uint32_t& depth) : depth_(depth) { ++depth_; }
    ~BranchDepth() { --depth_; }
    BranchDepth(const BranchDepth&) = delete;
    std::uint32_t& depth_;
};

std::set<std::string> types_of(const OrderedJson& schema) {
    const auto given = schema.find("type");
    std::set<std::string> out;
    if (given == schema.end()) {
        out = {"object", "array", "string", "number", "boolean", "null"};
    } else {
        for (const OrderedJson& one : given->is_array() ? *given : OrderedJson::array({*given}))
            if (one.is_string()) out.insert(one == "integer" ? "number" : one.get<std::string>());
    }
    return out;
}

const OrderedJson& members_of(const OrderedJson& schema) {
    static const OrderedJson none = OrderedJson::object();
    const auto found = schema.find("properties");
    return found != schema.end() && found->is_object() ? *found : none;
}

std::vector<std::string> required_of(const OrderedJson& schema) {
    std::vector<std::string> out;
    if (const auto found = schema.find("required"); found != schema.end() && found->is_array())
        for (const OrderedJson& name : *found)
            if (name.is_string()) out.push_back(name.get<std::string>());
    return out;
}

bool has_name(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the values that a schema lists, or an empty array if it lists none.
OrderedJson listed_values(const OrderedJson& schema) {
    if (const auto only = schema.find("const"); only != schema.end())
        return OrderedJson::array({*only});
    const auto list = schema.find("enum");
    return list != schema.end() && list->is_array() ? *list : OrderedJson::array();
}

double bound_of(const OrderedJson& schema, const char* name, double otherwise) {
    const auto found = schema.find(name);
    return found != schema.end() && found->is_number() ? found->get<double>() : otherwise;
}

// Returns true if the ranges that two schemas set by the keywords `min` and `max` have no common
// number.
bool ranges_are_apart(const OrderedJson& a, const OrderedJson& b, const char* min,
                      const char* max) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    return bound_of(a, max, infinity) < bound_of(b, min, -infinity) ||
           bound_of(b, max, infinity) < bound_of(a, min, -infinity);
}

}  // namespace

bool SchemaBranches::make_exclusive(std::vector<OrderedJson>& branches) {
    if (branches.size() > branches_max) return false;
    const std::vector<OrderedJson> given = branches;
    for (std::size_t i = 0; i < branches.size(); ++i)
        for (std::size_t j = 0; j < given.size(); ++j) {
            if (i == j || rejects(branches[i], given[j])) continue;
            if (!narrow(branches[i], given[j]) || !rejects(branches[i], given[j])) return false;
        }
    return true;
}

// Takes from the branch a member that it does not require and `other` requires; returns false if
// there is no such member.
bool SchemaBranches::narrow(OrderedJson& branch, const OrderedJson& other) {
    if (!branch.is_object() || !other.is_object()) return false;
    const std::vector<std::string> own = required_of(branch);
    for (const std::string& name : required_of(other)) {
        if (has_name(own, name)) continue;
        if (!branch.contains("properties") && !branch.contains("additionalProperties"))
            branch["additionalProperties"] = true;
        branch["properties"][name] = false;
        return true;
    }
    return false;
}

// Returns true if no text of the grammar of `text_of` is valid under `schema`.
bool SchemaBranches::rejects(const OrderedJson& text_of, const OrderedJson& schema) {
    if (++steps_ > branch_steps_max || depth_ >= branch_depth_max) return false;
    const BranchDepth inside(depth_);
    if (text_of == false || schema == false) return true;
    if (!text_of.is_object() || !schema.is_object()) return false;
    if (text_of.contains("anyOf") || schema.contains("anyOf"))
        return branches_reject(text_of, schema);
    if (values_reject(text_of, schema)) return true;

    const std::set<std::string> types = types_of(text_of), others = types_of(schema);
    return std::all_of(types.begin(), types.end(), [&](const std::string& type) {
        return !others.contains(type) || type_rejects(type, text_of, schema);
    });
}

bool SchemaBranches::branches_reject(const OrderedJson& text_of, const OrderedJson& schema) {
    const bool first = text_of.contains("anyOf");
    OrderedJson rest = first ? text_of : schema;
    const OrderedJson list = rest["anyOf"];
    rest.erase("anyOf");
    if (!list.is_array() || list.size() > branches_max) return false;
    return std::all_of(list.begin(), list.end(), [&](const OrderedJson& one) {
        const OrderedJson branch = document_.merged(rest, document_.flattened(one, path_), path_);
        return first ? rejects(branch, schema) : rejects(text_of, branch);
    });
}

bool SchemaBranches::values_reject(const OrderedJson& text_of, const OrderedJson& schema) {
    const auto none_fits = [&](const OrderedJson& values, const OrderedJson& judge) {
        return !values.empty() &&
               std::all_of(values.begin(), values.end(), [&](const OrderedJson& value) {
                   ++steps_;
                   const auto fits = schema_admits(
                       judge, value, [&](const OrderedJson& ref) -> const OrderedJson& {
                           return document_.resolve(ref, path_);
                       });
                   return fits.ok() && !*fits;
               });
    };
    return none_fits(listed_values(text_of), schema) || none_fits(listed_values(schema), text_of);
}

bool SchemaBranches::type_rejects(const std::string& type, const OrderedJson& text_of,
                                  const OrderedJson& schema) {
    if (type == "object") return objects_reject(text_of, schema);
    if (type == "array") return arrays_reject(text_of, schema);
    if (type == "string") return strings_reject(text_of, schema);
    return type == "number" && ranges_are_apart(text_of, schema, "minimum", "maximum");
}

bool SchemaBranches::objects_reject(const OrderedJson& text_of, const OrderedJson& schema) {
    const OrderedJson &own = members_of(text_of), &others = members_of(schema);
    const std::vector<std::string> wanted = required_of(text_of), demanded = required_of(schema);
    for (const std::string& name : demanded) {
        const bool lacks = own.contains(name)
                               ? own[name] == false
                               : document_.is_closed(text_of) && !has_name(wanted, name);
        if (lacks) return true;
    }

    const bool takes_no_more = schema.contains("additionalProperties") &&
                               schema["additionalProperties"] == false &&
                               !schema.contains("patternProperties");
    std::vector<std::string> certain = wanted;
    certain.insert(certain.end(), demanded.begin(), demanded.end());
    for (const std::string& name : certain) {
        if (!others.contains(name)) {
            if (takes_no_more && has_name(wanted, name)) return true;
            continue;
        }
        if (own.contains(name) && rejects(document_.flattened(own[name], path_),
                                          document_.flattened(others[name], path_)))
            return true;
    }
    return false;
}

bool SchemaBranches::arrays_reject(const OrderedJson& text_of, const OrderedJson& schema) {
    if (ranges_are_apart(text_of, schema, "minItems", "maxItems")) return true;
    const bool has_item = bound_of(text_of, "minItems", 0) >= 1 ||
                          bound_of(schema, "minItems", 0) >= 1;
    if (!has_item || text_of.contains("prefixItems") || schema.contains("prefixItems"))
        return false;
    if (!text_of.contains("items") || !schema.contains("items")) return false;
    return rejects(document_.flattened(text_of["items"], path_),
                   document_.flattened(schema["items"], path_));
}

bool SchemaBranches::strings_reject(const OrderedJson& text_of, const OrderedJson& schema) const {
    if (ranges_are_apart(text_of, schema, "minLength", "maxLength")) return true;
    const auto of_a = text_of.find("pattern"), of_b = schema.find("pattern");
    if (of_a == text_of.end() || of_b == schema.end() || !of_a->is_string() || !of_b->is_string())
        return false;
    const auto a = automaton_of_pattern(of_a->get<std::string>());
    const auto b = automaton_of_pattern(of_b->get<std::string>());
    if (!a.ok() || !b.ok()) return false;
    const auto common = intersection(**a, **b);
    return common.ok() && (*common)->num_states() == 0;
}

}  // namespace moex
