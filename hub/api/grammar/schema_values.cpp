#include "hub/api/grammar/schema_values.h"

#include <algorithm>

#include "hub/api/grammar/grammar.h"
#include "hub/api/grammar/json_number.h"
#include "hub/api/grammar/schema_formats.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint32_t judge_steps_max = 50'000, judge_depth_max = 200;

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

bool is_of_type(const OrderedJson& schema, const OrderedJson& value) {
    const auto type = schema.find("type");
    if (type == schema.end()) return true;
    const OrderedJson list = type->is_array() ? *type : OrderedJson::array({*type});
    return std::any_of(list.begin(), list.end(), [&](const OrderedJson& one) {
        return one.is_string() && has_type(value, one.get<std::string>());
    });
}

// Returns true if the number `a` is below `b`. Integers are compared exactly.
bool is_below(const OrderedJson& a, const OrderedJson& b) {
    if (!a.is_number_integer() || !b.is_number_integer()) return a.get<double>() < b.get<double>();
    const bool a_negative = !a.is_number_unsigned() && a.get<std::int64_t>() < 0;
    const bool b_negative = !b.is_number_unsigned() && b.get<std::int64_t>() < 0;
    if (a_negative != b_negative) return a_negative;
    return a_negative ? a.get<std::int64_t>() < b.get<std::int64_t>()
                      : a.get<std::uint64_t>() < b.get<std::uint64_t>();
}

bool is_multiple(const OrderedJson& value, const OrderedJson& step) {
    if (!step.is_number() || step.get<double>() <= 0) return true;
    constexpr double exact_max = 1e18;
    if (value.is_number_integer() && step.is_number_integer() && step.get<double>() < exact_max) {
        if (value.is_number_unsigned())
            return value.get<std::uint64_t>() % step.get<std::uint64_t>() == 0;
        return value.get<std::int64_t>() % step.get<std::int64_t>() == 0;
    }
    // Divide the decimals, since 0.07 / 0.01 is not whole in binary fractions.
    Decimal dividend = decimal_of(value.get<double>()), divisor = decimal_of(step.get<double>());
    constexpr int shift_max = 18;
    if (std::abs(dividend.exponent - divisor.exponent) > shift_max) {
        const double times = value.get<double>() / step.get<double>();
        return times == std::floor(times);
    }
    for (; dividend.exponent > divisor.exponent; --dividend.exponent) dividend.digits *= 10;
    for (; divisor.exponent > dividend.exponent; --divisor.exponent) divisor.digits *= 10;
    return divisor.digits != 0 && dividend.digits % divisor.digits == 0;
}

bool number_fits(const OrderedJson& schema, const OrderedJson& value) {
    const auto bound = [&](const char* name) -> const OrderedJson* {
        const auto found = schema.find(name);
        return found != schema.end() && found->is_number() ? &*found : nullptr;
    };
    // Draft 4 has a flag that excludes the bound itself.
    const auto excludes = [&](const char* name) {
        const auto flag = schema.find(name);
        return flag != schema.end() && *flag == true;
    };
    if (const auto* min = bound("minimum"))
        if (is_below(value, *min) || (excludes("exclusiveMinimum") && !is_below(*min, value)))
            return false;
    if (const auto* max = bound("maximum"))
        if (is_below(*max, value) || (excludes("exclusiveMaximum") && !is_below(value, *max)))
            return false;
    if (const auto* min = bound("exclusiveMinimum"); min && !is_below(*min, value)) return false;
    if (const auto* max = bound("exclusiveMaximum"); max && !is_below(value, *max)) return false;
    if (const auto* step = bound("multipleOf"); step && !is_multiple(value, *step)) return false;
    const auto steps = schema.find("multipleOfs of allOf");
    return steps == schema.end() ||
           std::all_of(steps->begin(), steps->end(),
                       [&](const OrderedJson& step) { return is_multiple(value, step); });
}

// Returns true if `size`, a number of code points, items or members, is within the bounds that the
// keywords `min` and `max` set.
bool size_fits(const OrderedJson& schema, const char* min, const char* max, std::size_t size) {
    const auto least = schema.find(min), most = schema.find(max);
    const auto count = static_cast<std::int64_t>(size);
    if (least != schema.end() && whole_number(*least).value_or(0) > count) return false;
    return most == schema.end() ||
           whole_number(*most).value_or(std::numeric_limits<std::int64_t>::max()) >= count;
}

class Judge {
  public:
    Judge(const ResolveReference& resolve, const FindPattern& pattern)
        : resolve_(resolve),
          pattern_(pattern) {}

    Result<bool> admits(const OrderedJson& schema, const OrderedJson& value) {
        if (++steps_ > judge_steps_max || depth_ > judge_depth_max)
            return Error{ErrorCode::unsupported, "too deep"};
        if (schema.is_boolean()) return schema.get<bool>();
        if (!schema.is_object())
            return Error{ErrorCode::invalid_argument, "a schema is an object, true or false"};
        for (const char* name :
             {"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"})
            if (schema.contains(name))
                return Error{ErrorCode::unsupported, text("'", name, "' is not supported")};
        ++depth_;
        Result<bool> fits = fits_all(schema, value);
        --depth_;
        return fits;
    }

  private:
    Result<bool> fits_all(const OrderedJson& schema, const OrderedJson& value) {
        if (const auto found = schema.find("const");
            found != schema.end() && !same_value(*found, value))
            return false;
        if (const auto list = schema.find("enum"); list != schema.end())
            if (std::none_of(list->begin(), list->end(),
                             [&](const OrderedJson& one) { return same_value(one, value); }))
                return false;
        if (!is_of_type(schema, value)) return false;
        MOEX_ASSIGN(combined, combination_fits(schema, value));
        if (!combined) return false;

        if (value.is_number()) return number_fits(schema, value);
        if (value.is_string()) return string_fits(schema, value.get_ref<const std::string&>());
        if (value.is_array()) return items_fit(schema, value);
        return value.is_object() ? members_fit(schema, value) : Result<bool>(true);
    }

    Result<bool> combination_fits(const OrderedJson& schema, const OrderedJson& value) {
        if (schema.contains("$ref")) {
            MOEX_ASSIGN(fits, admits(resolve_(schema), value));
            if (!fits) return false;
        }
        if (const auto list = schema.find("allOf"); list != schema.end()) {
            MOEX_ASSIGN(count, num_fitting(*list, value));
            if (count != list->size()) return false;
        }
        if (const auto list = schema.find("anyOf"); list != schema.end()) {
            MOEX_ASSIGN(count, num_fitting(*list, value));
            if (count == 0) return false;
        }
        if (const auto list = schema.find("oneOf"); list != schema.end()) {
            MOEX_ASSIGN(count, num_fitting(*list, value));
            if (count != 1) return false;
        }
        if (const auto no = schema.find("not"); no != schema.end()) {
            MOEX_ASSIGN(fits, admits(*no, value));
            if (fits) return false;
        }
        const auto condition = schema.find("if");
        if (condition == schema.end()) return true;
        MOEX_ASSIGN(holds, admits(*condition, value));
        const auto then = schema.find(holds ? "then" : "else");
        return then == schema.end() ? Result<bool>(true) : admits(*then, value);
    }

    Result<std::size_t> num_fitting(const OrderedJson& list, const OrderedJson& value) {
        std::size_t count = 0;
        for (const OrderedJson& one : list) {
            MOEX_ASSIGN(fits, admits(one, value));
            count += fits;
        }
        return count;
    }

    Result<bool> string_fits(const OrderedJson& schema, const std::string& value) {
        if (!size_fits(schema, "minLength", "maxLength", utf8_count(value))) return false;
        for (const char* key : {"pattern", "format"}) {
            OrderedJson list = OrderedJson::array();
            if (schema.contains(key)) list.push_back(schema[key]);
            if (const auto more = schema.find(std::string(key) + "s of allOf");
                more != schema.end())
                for (const OrderedJson& one : *more) list.push_back(one);
            for (const OrderedJson& one : list) {
                if (!one.is_string())
                    return Error{ErrorCode::invalid_argument, text("'", key, "' is no string")};
                const auto words = one.get<std::string>();
                MOEX_ASSIGN(texts, *key == 'p' ? pattern_(words) : automaton_of_format(words));
                if (texts && !holds(*texts, value)) return false;
            }
        }
        return true;
    }

    Result<bool> items_fit(const OrderedJson& schema, const OrderedJson& value) {
        if (!size_fits(schema, "minItems", "maxItems", value.size())) return false;
        auto prefix = schema.find("prefixItems"), items = schema.find("items");
        if (items != schema.end() && items->is_array()) {  // the spelling of older drafts
            prefix = items;
            items = schema.find("additionalItems");
        }
        std::size_t contained = 0;
        const auto contains = schema.find("contains");
        for (std::size_t i = 0; i < value.size(); ++i) {
            const bool in_prefix = prefix != schema.end() && prefix->is_array() &&
                                   i < prefix->size();
            if (in_prefix || items != schema.end()) {
                MOEX_ASSIGN(fits, admits(in_prefix ? (*prefix)[i] : *items, value[i]));
                if (!fits) return false;
            }
            if (contains != schema.end()) {
                MOEX_ASSIGN(fits, admits(*contains, value[i]));
                contained += fits;
            }
        }
        if (contains != schema.end() && (contained > 0 || !schema.contains("minContains"))) {
            if (contained == 0) return false;
        }
        if (contains != schema.end() && !size_fits(schema, "minContains", "maxContains", contained))
            return false;
        const auto unique = schema.find("uniqueItems");
        return unique == schema.end() || *unique != true || is_unique(value);
    }

    static bool is_unique(const OrderedJson& items) {
        for (std::size_t i = 0; i < items.size(); ++i)
            for (std::size_t j = 0; j < i; ++j)
                if (same_value(items[i], items[j])) return false;
        return true;
    }

    Result<bool> members_fit(const OrderedJson& schema, const OrderedJson& value) {
        if (!size_fits(schema, "minProperties", "maxProperties", value.size())) return false;
        if (const auto required = schema.find("required"); required != schema.end())
            for (const OrderedJson& name : *required)
                if (!name.is_string() || !value.contains(name.get<std::string>())) return false;
        MOEX_ASSIGN(depends, dependencies_fit(schema, value));
        if (!depends) return false;
        for (const auto& [name, member] : value.items()) {
            MOEX_ASSIGN(fits, member_fits(schema, name, member));
            if (!fits) return false;
        }
        return true;
    }

    Result<bool> member_fits(const OrderedJson& schema, const std::string& name,
                             const OrderedJson& member) {
        if (const auto names = schema.find("propertyNames"); names != schema.end()) {
            MOEX_ASSIGN(fits, admits(*names, OrderedJson(name)));
            if (!fits) return false;
        }
        const auto declared = schema.find("properties");
        bool is_known = declared != schema.end() && declared->contains(name);
        if (is_known) {
            MOEX_ASSIGN(fits, admits((*declared)[name], member));
            if (!fits) return false;
        }
        if (const auto patterns = schema.find("patternProperties"); patterns != schema.end())
            for (const auto& [pattern, inside] : patterns->items()) {
                MOEX_ASSIGN(names, pattern_(pattern));
                if (!holds(*names, name)) continue;
                is_known = true;
                MOEX_ASSIGN(fits, admits(inside, member));
                if (!fits) return false;
            }
        const auto further = schema.find("additionalProperties");
        return is_known || further == schema.end() ? Result<bool>(true) : admits(*further, member);
    }

    Result<bool> dependencies_fit(const OrderedJson& schema, const OrderedJson& value) {
        for (const char* key : {"dependentRequired", "dependentSchemas", "dependencies"}) {
            const auto list = schema.find(key);
            if (list == schema.end()) continue;
            for (const auto& [name, wanted] : list->items()) {
                if (!value.contains(name)) continue;
                if (!wanted.is_array()) {
                    MOEX_ASSIGN(fits, admits(wanted, value));
                    if (!fits) return false;
                    continue;
                }
                for (const OrderedJson& other : wanted)
                    if (!other.is_string() || !value.contains(other.get<std::string>()))
                        return false;
            }
        }
        return true;
    }

    const ResolveReference& resolve_;
    const FindPattern& pattern_;
    std::uint32_t steps_ = 0, depth_ = 0;
};

}  // namespace

bool same_value(const OrderedJson& a, const OrderedJson& b) {
    if (a.is_number_integer() && b.is_number_integer()) return a == b;
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
                           const ResolveReference& resolve) {
    return schema_admits(schema, value, resolve, automaton_of_pattern);
}

Result<bool> schema_admits(const OrderedJson& schema, const OrderedJson& value,
                           const ResolveReference& resolve, const FindPattern& pattern) {
    return Judge(resolve, pattern).admits(schema, value);
}

}  // namespace moex
