#include "hub/api/grammar/schema_negation.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "hub/api/grammar/schema_values.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint32_t negation_depth_max = 12, negation_steps_max = 2'000;
constexpr std::size_t excluded_bytes_max = 4'096, excluded_numbers_max = 32;

constexpr std::array annotations{"title",    "description", "$comment",   "default",
                                 "examples", "example",     "deprecated", "readOnly",
                                 "$id",      "$schema",     "writeOnly"};

// A tree of the characters of words.
struct WordTree {
    bool is_word = false;
    std::map<char32_t, WordTree> next;
};

// Writes a character in a pattern.
std::string pattern_of(char32_t c) {
    char words[16];
    std::snprintf(words, sizeof words, "\\u{%x}", static_cast<unsigned>(c));
    return words;
}

// Returns a pattern of the texts that lead from `tree` to none of its words.
std::string other_texts(const WordTree& tree) {
    std::string others, out;
    for (const auto& [c, below] : tree.next) {
        others += pattern_of(c);
        out += text('|', pattern_of(c), other_texts(below));
    }
    const std::string any = "[\\s\\S]";
    const std::string first = others.empty() ? any : text("[^", others, "]");
    return text("(?:", first, any, '*', out, tree.is_word ? ")" : ")?");
}

// Returns the pattern of all texts except `words`.
std::string pattern_without(const std::vector<std::string>& words) {
    WordTree tree;
    for (const std::string& word : words) {
        WordTree* at = &tree;
        for (std::size_t i = 0; i < word.size();) {
            const Utf8Step step = utf8_step(word, i);
            at = &at->next[step.code_point];
            i += step.num_bytes;
        }
        at->is_word = true;
    }
    return text('^', other_texts(tree), '$');
}

class Negation {
  public:
    Negation(const SchemaDocument& document, const std::string& path)
        : document_(document),
          path_(path) {}

    std::optional<OrderedJson> of(const OrderedJson& schema) {
        if (schema.is_boolean()) return OrderedJson(!schema.get<bool>());
        if (!schema.is_object() || ++steps_ > negation_steps_max || depth_ >= negation_depth_max)
            return std::nullopt;
        ++depth_;
        std::vector<OrderedJson> all;
        bool is_known = true;
        for (const auto& [key, value] : schema.items())
            is_known = is_known && add_keyword(schema, key, value, all);
        --depth_;
        if (!is_known) return std::nullopt;
        if (all.empty()) return OrderedJson(false);
        if (all.size() == 1) return all[0];
        return OrderedJson{{"anyOf", all}};
    }

  private:
    using Schemas = std::vector<OrderedJson>;

    // Adds the schemas of the values that one keyword refuses; false: the keyword is not known.
    bool add_keyword(const OrderedJson& schema, const std::string& key, const OrderedJson& value,
                     Schemas& out) {
        if (std::find(annotations.begin(), annotations.end(), key) != annotations.end())
            return true;
        if (key == "type") return add_types(value, out);
        if (key == "const") return add_other_values(OrderedJson::array({value}), out);
        if (key == "enum") return value.is_array() && add_other_values(value, out);
        if (key == "properties") return add_members(value, out);
        if (key == "required") return add_missing(value, out);
        if (key == "$ref") return add_negated(document_.resolve(schema, path_), out);
        if (key == "not") {
            out.push_back(value);
            return true;
        }
        if (key == "allOf")
            return value.is_array() &&
                   std::all_of(value.begin(), value.end(),
                               [&](const OrderedJson& one) { return add_negated(one, out); });
        if (key == "anyOf") return add_none_of(value, out);
        return add_bound(key, value, out);
    }

    bool add_negated(const OrderedJson& schema, Schemas& out) {
        auto no = of(schema);
        if (!no) return false;
        if (*no != false) out.push_back(*std::move(no));
        return true;
    }

    bool add_none_of(const OrderedJson& list, Schemas& out) {
        if (!list.is_array() || list.empty()) return false;
        OrderedJson all = OrderedJson::array();
        for (const OrderedJson& one : list) {
            auto no = of(one);
            if (!no) return false;
            all.push_back(*std::move(no));
        }
        out.push_back({{"allOf", std::move(all)}});
        return true;
    }

    static bool add_types(const OrderedJson& type, Schemas& out) {
        std::set<std::string> left{"object", "array", "string", "number", "boolean", "null"};
        for (const OrderedJson& one : type.is_array() ? type : OrderedJson::array({type}))
            if (!one.is_string() || left.erase(one.get<std::string>()) == 0) return false;
        if (!left.empty())
            out.push_back({{"type", std::vector<std::string>(left.begin(), left.end())}});
        return true;
    }

    bool add_members(const OrderedJson& members, Schemas& out) {
        if (!members.is_object()) return false;
        for (const auto& [name, inside] : members.items()) {
            const auto no = of(inside);
            if (!no) return false;
            if (*no == false) continue;
            out.push_back({{"type", "object"},
                           {"properties", {{name, *no}}},
                           {"required", OrderedJson::array({name})}});
        }
        return true;
    }

    static bool add_missing(const OrderedJson& names, Schemas& out) {
        if (!names.is_array()) return false;
        for (const OrderedJson& name : names) {
            if (!name.is_string()) return false;
            out.push_back({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
        }
        return true;
    }

    static bool add_bound(const std::string& key, const OrderedJson& value, Schemas& out) {
        struct Counterpart {
            const char *key, *type, *other;
            int step;  // distance between a bound and its counterpart
        };
        static constexpr Counterpart all[] = {
            {"minLength", "string", "maxLength", -1},
            {"maxLength", "string", "minLength", 1},
            {"minItems", "array", "maxItems", -1},
            {"maxItems", "array", "minItems", 1},
            {"minProperties", "object", "maxProperties", -1},
            {"maxProperties", "object", "minProperties", 1},
            {"minimum", "number", "exclusiveMaximum", 0},
            {"exclusiveMinimum", "number", "maximum", 0},
            {"maximum", "number", "exclusiveMinimum", 0},
            {"exclusiveMaximum", "number", "minimum", 0},
        };
        for (const Counterpart& one : all) {
            if (key != one.key) continue;
            if (!value.is_number()) return false;
            if (one.step == 0) {
                out.push_back({{"type", one.type}, {one.other, value}});
                return true;
            }
            const auto count = whole_number(value);
            if (!count) return false;
            if (*count + one.step >= 0)
                out.push_back({{"type", one.type}, {one.other, *count + one.step}});
            return true;
        }
        return false;
    }

    // Adds the schemas of all values except those of a list.
    static bool add_other_values(const OrderedJson& list, Schemas& out) {
        std::vector<std::string> words;
        OrderedJson numbers = OrderedJson::array(), booleans = OrderedJson::array({true, false});
        bool has_null = false;
        std::size_t bytes = 0;
        for (const OrderedJson& one : list) {
            if (one.is_structured()) return false;
            if (one.is_null()) has_null = true;
            const auto listed = std::find(booleans.begin(), booleans.end(), one);
            if (listed != booleans.end()) booleans.erase(listed);
            if (one.is_number()) numbers.push_back(one);
            if (!one.is_string()) continue;
            words.push_back(one.get<std::string>());
            bytes += words.back().size();
        }
        if (bytes > excluded_bytes_max || numbers.size() > excluded_numbers_max) return false;
        OrderedJson texts{{"type", "string"}};
        if (!words.empty()) texts["pattern"] = pattern_without(words);
        out.push_back(std::move(texts));
        add_other_numbers(std::move(numbers), out);
        if (!booleans.empty()) out.push_back({{"enum", std::move(booleans)}});
        OrderedJson others = OrderedJson::array({"object", "array"});
        if (!has_null) others.push_back("null");
        out.push_back({{"type", std::move(others)}});
        return true;
    }

    // Adds the ranges between the numbers of a list.
    static void add_other_numbers(OrderedJson numbers, Schemas& out) {
        std::sort(numbers.begin(), numbers.end());
        for (std::size_t i = 0; i <= numbers.size(); ++i) {
            OrderedJson range{{"type", "number"}};
            if (i > 0) range["exclusiveMinimum"] = numbers[i - 1];
            if (i < numbers.size()) range["exclusiveMaximum"] = numbers[i];
            out.push_back(std::move(range));
        }
    }

    const SchemaDocument& document_;
    const std::string& path_;
    std::uint32_t depth_ = 0, steps_ = 0;
};

}  // namespace

std::optional<OrderedJson> negated_schema(const SchemaDocument& document, const OrderedJson& schema,
                                          const std::string& path) {
    return Negation(document, path).of(schema);
}

}  // namespace moex
