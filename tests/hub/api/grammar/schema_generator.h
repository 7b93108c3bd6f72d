// Generates schemas and their instances from a seed. Every supported keyword is used. Each schema
// has instances, because it is built around a possible instance.
#pragma once

#include <random>
#include <string>

#include "hub/model/json_fields.h"

namespace moex::test {

class SchemaGenerator {
  public:
    explicit SchemaGenerator(std::uint64_t seed) : random_(seed * 7919 + 13) {}

    OrderedJson document() {
        OrderedJson defs{{"leaf", scalar()}, {"list", OrderedJson::object()}};
        defs["list"] = {
            {"type", "object"},
            {"properties",
             {{"value", scalar()},
              {"next",
               {{"anyOf", OrderedJson::array({{{"type", "null"}}, {{"$ref", "#/$defs/list"}}})}}}}},
            {"required", {"value"}},
            {"additionalProperties", false}};
        OrderedJson schema = this->schema(3);
        if (schema.is_boolean()) schema = OrderedJson::object();
        schema["$defs"] = std::move(defs);
        root_ = schema;
        return schema;
    }

    // Makes an instance of `schema`, which is document() or a part of the document.
    OrderedJson instance(const OrderedJson& schema, int depth = 0) {
        if (schema.is_boolean()) return any_value(depth);
        if (schema.contains("$ref"))
            return instance(
                root_.at(OrderedJson::json_pointer(schema["$ref"].get<std::string>().substr(1))),
                depth);
        if (schema.contains("const")) return schema["const"];
        if (schema.contains("enum")) return schema["enum"][below(schema["enum"].size())];
        if (schema.contains("anyOf"))
            return instance(schema["anyOf"][depth > 6 ? 0 : below(schema["anyOf"].size())],
                            depth + 1);
        if (schema.contains("allOf")) return all_of(schema, depth);
        if (!schema.contains("type")) return any_value(depth);
        const OrderedJson& type = schema["type"];
        const std::string name = type.is_array() ? type[below(type.size())] : type;
        if (name == "object") return object_of(schema, depth);
        if (name == "array") return array_of(schema, depth);
        if (name == "string") return string_of(schema);
        if (name == "boolean") return below(2) == 0;
        if (name == "null") return nullptr;
        return number_of(schema, name == "integer");
    }

  private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }
    bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }

    std::string word() {
        static const char* const words[] = {"a",
                                            "id",
                                            "name",
                                            "\xc3\xa9t\xc3\xa9",
                                            "x y",
                                            "a\"b",
                                            "back\\sl",
                                            "line\n",
                                            "\xf0\x9f\x98\x80",
                                            "key",
                                            "k1",
                                            "k2",
                                            "k3",
                                            "tags",
                                            ""};
        return words[below(std::size(words))];
    }

    OrderedJson schema(int depth) {
        const std::uint64_t kind = below(depth > 0 ? 12 : 6);
        if (kind < 5) return scalar();
        if (kind == 5)
            return chance(50) ? OrderedJson(true) : OrderedJson{{"$ref", "#/$defs/leaf"}};
        if (kind < 8) return object(depth);
        if (kind < 10) return array(depth);
        if (kind == 10)
            return {{"anyOf", OrderedJson::array({schema(depth - 1), schema(depth - 1)})}};
        return chance(50) ? OrderedJson{{"$ref", "#/$defs/list"}} : all_of_objects(depth);
    }

    OrderedJson scalar() {
        switch (below(9)) {
            case 0: return {{"type", "boolean"}, {"description", "either"}};
            case 1: return {{"type", OrderedJson::array({"null", "integer"})}};
            case 2:
                return {{"enum", OrderedJson::array({word(), 1, 2.5, nullptr, {{"k", word()}}})}};
            case 3: return {{"const", word()}};
            case 4: return string_with_length();
            case 5: return string_with_words();
            case 6: return integer();
            case 7: return real();
            default: return {{"type", "string"}};
        }
    }

    OrderedJson string_with_length() {
        const std::uint64_t min = below(4);
        OrderedJson out{{"type", "string"}, {"minLength", min}};
        if (chance(70)) out["maxLength"] = min + below(12);
        return out;
    }

    static constexpr std::pair<const char*, const char*> patterns[] = {
        {"^[a-z]{2,5}$", "abc"},
        {"\\d+", "x12"},
        {"^(foo|bar)-\\w*$", "foo-x_1"},
        {"[\xc3\xa9\xc3\xa0]", "d\xc3\xa9j\xc3\xa0"},
        {"^[^\"]*$", "free"},
        {"^\\s?x$", " x"}};
    static constexpr std::pair<const char*, const char*> formats[] = {
        {"date-time", "2024-02-29T12:30:00Z"}, {"date", "1999-12-31"},
        {"time", "23:59:59.25+01:00"},         {"uuid", "123e4567-e89b-12d3-a456-426614174000"},
        {"email", "some.one@example.org"},     {"ipv4", "10.0.255.1"}};

    OrderedJson string_with_words() {
        if (chance(50)) return {{"type", "string"}, {"format", formats[below(6)].first}};
        const auto& [pattern, sample] = patterns[below(6)];
        OrderedJson out{{"type", "string"}, {"pattern", pattern}};
        if (chance(30)) out["maxLength"] = 8;
        return out;
    }

    OrderedJson integer() {
        const auto min = static_cast<std::int64_t>(below(300)) - 150;
        OrderedJson out{{"type", "integer"}};
        if (chance(60)) out[chance(50) ? "minimum" : "exclusiveMinimum"] = min;
        if (chance(60))
            out[chance(50) ? "maximum" : "exclusiveMaximum"] =
                min + 2 + static_cast<std::int64_t>(below(1000));
        return out;
    }

    OrderedJson real() {
        const double min = static_cast<double>(below(1000)) / 8 - 60;
        OrderedJson out{{"type", "number"}};
        if (chance(60)) out[chance(50) ? "minimum" : "exclusiveMinimum"] = min;
        if (chance(60)) out[chance(50) ? "maximum" : "exclusiveMaximum"] = min + 0.75;
        return out;
    }

    OrderedJson object(int depth) {
        OrderedJson properties = OrderedJson::object(), required = OrderedJson::array();
        for (std::uint64_t i = below(5); i > 0; --i) properties[word()] = schema(depth - 1);
        for (const auto& [name, value] : properties.items())
            if (chance(50)) required.push_back(name);
        OrderedJson out{{"type", "object"}, {"properties", properties}, {"required", required}};
        if (chance(60))
            out["additionalProperties"] = chance(60) ? OrderedJson(false) : schema(depth - 1);
        return out;
    }

    OrderedJson all_of_objects(int depth) {
        return {{"type", "object"},
                {"allOf", OrderedJson::array({{{"properties", {{"left", schema(depth - 1)}}},
                                               {"required", {"left"}}},
                                              {{"properties", {{"right", schema(depth - 1)}}}}})}};
    }

    OrderedJson array(int depth) {
        OrderedJson out{{"type", "array"}};
        const std::uint64_t min = below(3);
        if (chance(40)) out["minItems"] = min;
        if (chance(40)) out["maxItems"] = min + below(3);
        if (chance(30))
            out["prefixItems"] = OrderedJson::array({schema(depth - 1), schema(depth - 1)});
        if (chance(80)) out["items"] = schema(depth - 1);
        return out;
    }

    // ---- Instances.
    OrderedJson any_value(int depth) {
        switch (below(depth > 3 ? 4 : 6)) {
            case 0: return word();
            case 1: return static_cast<std::int64_t>(below(2000)) - 1000;
            case 2: return nullptr;
            case 3: return static_cast<double>(below(4000)) / 16;
            case 4: return OrderedJson::array({any_value(depth + 1)});
            default: return {{word(), any_value(depth + 1)}};
        }
    }

    OrderedJson object_of(const OrderedJson& schema, int depth) {
        OrderedJson out = OrderedJson::object();
        const OrderedJson none = OrderedJson::array();
        const OrderedJson& required = schema.contains("required") ? schema["required"] : none;
        if (schema.contains("properties"))
            for (const auto& [name, value] : schema["properties"].items()) {
                const bool must = std::find(required.begin(), required.end(), name) !=
                                  required.end();
                if (must || (depth < 6 && chance(60))) out[name] = instance(value, depth + 1);
            }
        const OrderedJson further = schema.value("additionalProperties", OrderedJson(true));
        if (further != false && depth < 4 && chance(40)) {
            const std::string name = word() + "+";
            if (!out.contains(name)) out[name] = instance(further, depth + 1);
        }
        return out;
    }

    OrderedJson all_of(const OrderedJson& schema, int depth) {
        OrderedJson out = OrderedJson::object();
        for (const OrderedJson& one : schema["allOf"])
            for (const auto& [name, value] : one["properties"].items())
                if (name == "left" || chance(50)) out[name] = instance(value, depth + 1);
        return out;
    }

    OrderedJson array_of(const OrderedJson& schema, int depth) {
        const auto min = schema.value("minItems", std::uint64_t{0});
        const auto max = schema.value("maxItems", min + 3);
        const std::uint64_t size = depth > 5 ? min : min + below(max - min + 1);
        OrderedJson out = OrderedJson::array();
        for (std::uint64_t i = 0; i < size; ++i) {
            const bool fixed = schema.contains("prefixItems") && i < schema["prefixItems"].size();
            out.push_back(instance(
                fixed ? schema["prefixItems"][i] : schema.value("items", OrderedJson(true)),
                depth + 1));
        }
        return out;
    }

    OrderedJson string_of(const OrderedJson& schema) {
        for (const auto& [pattern, sample] : patterns)
            if (schema.contains("pattern") && schema["pattern"] == pattern) return sample;
        for (const auto& [format, sample] : formats)
            if (schema.contains("format") && schema["format"] == format) return sample;
        const auto min = schema.value("minLength", std::uint64_t{0});
        const auto max = schema.value("maxLength", min + 6);
        static const char* const characters[] = {
            "a", "B", "7", " ", "\"", "\\", "\n", "\xc3\xa9", "\xf0\x9f\x98\x80", "/"};
        std::string out;
        for (std::uint64_t i = min + below(max - min + 1); i > 0; --i) out += characters[below(10)];
        return out;
    }

    OrderedJson number_of(const OrderedJson& schema, bool whole) {
        double low = -1000, high = 1000;
        if (schema.contains("minimum")) low = schema["minimum"];
        if (schema.contains("exclusiveMinimum"))
            low = schema["exclusiveMinimum"].get<double>() + (whole ? 1 : 0.125);
        if (schema.contains("maximum"))
            high = schema["maximum"];
        else if (schema.contains("exclusiveMaximum"))
            high = schema["exclusiveMaximum"].get<double>() - (whole ? 1 : 0.125);
        else
            high = std::max(high, low + 10);
        if (!schema.contains("minimum") && !schema.contains("exclusiveMinimum"))
            low = std::min(low, high - 10);
        if (whole)
            return static_cast<std::int64_t>(low) +
                   static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low) + 1));
        return low + (high - low) * static_cast<double>(below(9)) / 8;
    }

    std::mt19937_64 random_;
    OrderedJson root_;
};

}  // namespace moex::test
