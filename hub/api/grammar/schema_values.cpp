#include "hub/api/grammar/schema_values.h"

#include <algorithm>

#include "hub/api/grammar/grammar.h"
#include "hub/api/grammar/schema_formats.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {
namespace {

bool has_type(const OrderedJson& value, const std::string& type) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "number") return value.is_number();
    return type == "integer" && value.is_number() &&
           (value.is_number_integer() || value.get<double>() == std::floor(value.get<double>()));
}

bool number_fits(const OrderedJson& schema, double value) {
    const auto bound = [&](const char* name, double otherwise) {
        const auto found = schema.find(name);
        return found != schema.end() && found->is_number() ? found->get<double>() : otherwise;
    };
    constexpr double infinity = std::numeric_limits<double>::infinity();
    return value >= bound("minimum", -infinity) && value <= bound("maximum", infinity) &&
           value > bound("exclusiveMinimum", -infinity) &&
           value < bound("exclusiveMaximum", infinity);
}

// Returns true if `size`, a number of code points or items, is within the bounds that the keywords
// `min` and `max` set.
bool size_fits(const OrderedJson& schema, const char* min, const char* max, std::size_t size) {
    const auto least = schema.find(min), most = schema.find(max);
    const auto count = static_cast<std::int64_t>(size);
    if (least != schema.end() && whole_number(*least).value_or(0) > count) return false;
    return most == schema.end() ||
           whole_number(*most).value_or(std::numeric_limits<std::int64_t>::max()) >= count;
}

class Judge {
  public:
    Judge(const ResolveReference& resolve, std::uint32_t depth)
        : resolve_(resolve),
          depth_(depth) {}

    Result<bool> admits(const OrderedJson& schema, const OrderedJson& value) const {
        return schema_admits(schema, value, resolve_, depth_ + 1);
    }

    Result<bool> members_fit(const OrderedJson& schema, const OrderedJson& value) const {
        if (const auto required = schema.find("required"); required != schema.end())
            for (const OrderedJson& name : *required)
                if (!name.is_string() || !value.contains(name.get<std::string>())) return false;
        const auto declared = schema.find("properties");
        const auto further = schema.find("additionalProperties");
        for (const auto& [name, member] : value.items()) {
            const bool is_declared = declared != schema.end() && declared->contains(name);
            if (!is_declared && further == schema.end()) continue;
            MOEX_ASSIGN(fits, admits(is_declared ? (*declared)[name] : *further, member));
            if (!fits) return false;
        }
        return true;
    }

    Result<bool> items_fit(const OrderedJson& schema, const OrderedJson& value) const {
        const auto prefix = schema.find("prefixItems"), items = schema.find("items");
        for (std::size_t i = 0; i < value.size(); ++i) {
            const bool in_prefix = prefix != schema.end() && i < prefix->size();
            if (!in_prefix && items == schema.end()) continue;
            MOEX_ASSIGN(fits, admits(in_prefix ? (*prefix)[i] : *items, value[i]));
            if (!fits) return false;
        }
        return true;
    }

    Result<bool> listed(const OrderedJson& list, const OrderedJson& value, bool all) const {
        for (const OrderedJson& one : list) {
            MOEX_ASSIGN(fits, admits(one, value));
            if (fits != all) return fits;
        }
        return all;
    }

  private:
    const ResolveReference& resolve_;
    std::uint32_t depth_;
};

bool is_of_type(const OrderedJson& schema, const OrderedJson& value) {
    const auto type = schema.find("type");
    if (type == schema.end()) return true;
    const OrderedJson list = type->is_array() ? *type : OrderedJson::array({*type});
    return std::any_of(list.begin(), list.end(), [&](const OrderedJson& one) {
        return one.is_string() && has_type(value, one.get<std::string>());
    });
}

Result<bool> string_fits(const OrderedJson& schema, const std::string& value) {
    if (!size_fits(schema, "minLength", "maxLength", utf8_count(value))) return false;
    MOEX_ASSIGN(texts, string_texts(schema));
    return texts == any_text() || holds(*texts, value);
}

}  // namespace

bool same_value(const OrderedJson& a, const OrderedJson& b) {
    if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
    if (a.type() != b.type()) return false;
    if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_value);
    if (!a.is_object()) return a == b;
    if (a.size() != b.size()) return false;
    for (const auto& [name, value] : a.items())
        if (!b.contains(name) || !same_value(value, b[name])) return false;
    return true;
}

std::string json_text(const OrderedJson& value) {
    std::string out;
    if (value.is_object()) {
        for (const auto& [name, member] : value.items()) {
            out += out.empty() ? "{" : std::string(json_comma);
            out += json_string(name) + std::string(json_colon) + json_text(member);
        }
        return out.empty() ? "{}" : out + "}";
    }
    if (value.is_array()) {
        for (const OrderedJson& item : value) {
            out += out.empty() ? "[" : std::string(json_comma);
            out += json_text(item);
        }
        return out.empty() ? "[]" : out + "]";
    }
    return value.dump();
}

Result<bool> schema_admits(const OrderedJson& schema, const OrderedJson& value,
                           const ResolveReference& resolve, std::uint32_t depth) {
    constexpr std::uint32_t depth_max = 200;
    if (depth > depth_max) return Error{ErrorCode::unsupported, "too deep"};
    if (schema.is_boolean()) return schema.get<bool>();
    const Judge judge(resolve, depth);

    if (const auto found = schema.find("const");
        found != schema.end() && !same_value(*found, value))
        return false;
    if (const auto list = schema.find("enum"); list != schema.end())
        if (std::none_of(list->begin(), list->end(),
                         [&](const OrderedJson& one) { return same_value(one, value); }))
            return false;
    if (!is_of_type(schema, value)) return false;

    if (schema.contains("$ref")) {
        MOEX_ASSIGN(fits, judge.admits(resolve(schema), value));
        if (!fits) return false;
    }
    for (const char* key : {"allOf", "anyOf"})
        if (const auto list = schema.find(key); list != schema.end()) {
            MOEX_ASSIGN(fits, judge.listed(*list, value, *(key + 1) == 'l'));
            if (!fits) return false;
        }

    if (value.is_number()) return number_fits(schema, value.get<double>());
    if (value.is_string()) return string_fits(schema, value.get_ref<const std::string&>());
    if (value.is_array()) {
        if (!size_fits(schema, "minItems", "maxItems", value.size())) return false;
        return judge.items_fit(schema, value);
    }
    return value.is_object() ? judge.members_fit(schema, value) : Result<bool>(true);
}

}  // namespace moex
