// Tests with schemas that try to break a compiler of schemas, in families of similar schemas. A
// schema compiles and its random answers are valid, or it is refused for the given reason.
#include "tests/hub/api/grammar/grammar_fixture.h"

namespace moex::test {
namespace {

// A family of schemas: each value in turn replaces '@' in the text `words`.
struct Family {
    const char* words;
    std::vector<std::string> values;
    const char* refused = nullptr;  // expected reason of the refusal; null: the schema compiles
};

std::string with_value(std::string words, const std::string& value) {
    for (std::size_t at = words.find('@'); at != std::string::npos;
         at = words.find('@', at + value.size()))
        words.replace(at, 1, value);
    return words;
}

std::string repeated(const std::string& words, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += words;
    return out;
}

// Joins `count` copies of `words` with commas; the number of a copy replaces its '#'.
std::string listed(const std::string& words, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) {
        std::string one = words;
        one.replace(one.find('#'), 1, std::to_string(i));
        out += (i > 0 ? "," : "") + one;
    }
    return out;
}

std::string nested_arrays(int depth) {
    return repeated(R"({"type": "array", "minItems": 1, "items": )", depth) +
           R"({"type": "null"})" + repeated("}", depth);
}
std::string nested_objects(int depth) {
    return repeated(R"({"type": "object", "required": ["a"], "properties": {"a": )", depth) +
           R"({"type": "null"})" + repeated("}}", depth);
}

const std::vector<std::string> names{
    "",         " ",    R"(a\"b)", R"(a\\b)",   R"(\u0000)",   R"(\n)",
    "\xc3\xa9", "type", "$ref",    "__proto__", "constructor", "a.b",
    "/",        "~",    "~0",      "0",         R"(\u2028)",   std::string(100, 'x')};

const std::vector<std::string> patterns{"^$",
                                        "a|b|",
                                        "(a|b)*abb",
                                        R"(^[^\\d]+$)",
                                        "^.{0,3}$",
                                        R"(^[\\w-]+$)",
                                        R"(^[\\]\\[]+$)",
                                        R"(^\\u00e9+$)",
                                        R"(^\\u{1F600}$)",
                                        R"(^\\x41$)",
                                        R"(^\\cJ$)",
                                        R"(^\\p{Lu}\\p{Ll}*$)",
                                        R"(^\\P{L}+$)",
                                        "^(?:a|(?:b|(?:c|d))){1,4}$",
                                        R"(^(?<y>\\d{4})$)",
                                        "^a{3}$",
                                        "^a{0}$",
                                        "^(a?){5}a{5}$",
                                        "^(a*)*$",
                                        "^(|a)+b$",
                                        "x*?",
                                        R"(^\\s*$)",
                                        R"(^[\\s\\S]$)",
                                        "^[a-]$",
                                        "^[-a]$",
                                        "^[.$^]$",
                                        R"(^\\/$)",
                                        R"(^\\0$)",
                                        R"(\\$$)",
                                        R"(^\\^)",
                                        R"([\\b])",
                                        "^[^]$",
                                        "^.$",
                                        "^(ab|a)(bc|c)$",
                                        R"(^[\\ud83d\\ude00]$)",
                                        R"(^\\-$)",
                                        R"(^\\n\\t\\r$)",
                                        R"(^([0-9]{1,3}\\.){3}[0-9]{1,3}$)",
                                        R"(^(?:[01]?\\d|2[0-3])$)",
                                        R"(^\"$)"};

std::vector<Family> families_of_values() {
    return {
        {R"({"type": "integer", "minimum": @})",
         {"-999999999999999", "-1", "0", "1", "0.5", "-0.5", "1e14", "999999999999999", "5e-1",
          "1e-20"}},
        {R"({"type": "number", "exclusiveMinimum": @})",
         {"0", "-0.1", "1e-10", "99999", "-1e14", "0.3", "1e14", "-1e-9"}},
        {R"({"type": "number", "minimum": @, "maximum": @})",
         {"0", "1", "-1", "0.1", "0.5", "123456789", "-0.25", "100", "3.14159"}},
        {R"({"type": "integer", "minimum": -3, "maximum": @})",
         {"-3", "-2", "0", "1", "9", "10", "11", "99", "100", "12345678901234"}},
        {R"({"type": "string", "minLength": @})",
         {"0", "1", "2", "15", "16", "63", "64", "65", "200", "500"}},
        {R"({"type": "string", "maxLength": @})",
         {"0", "1", "2", "3", "7", "64", "1000", "100000", "2147483647", "4294967296"}},
        {R"({"type": "string", "minLength": @, "maxLength": @})",
         {"0", "1", "5", "64", "65", "128"}},
        {R"({"type": "string", "pattern": "@"})", patterns},
        {R"({"type": "string", "format": "@"})",
         {"date", "time", "date-time", "uuid", "email", "ipv4"}},
        {R"({"type": "string", "format": "@", "minLength": 7})",
         {"date", "time", "date-time", "uuid", "email", "ipv4"}},
        {R"({"enum": [@]})",
         {"null", "0", "-0.5", R"("")", R"("\"")", R"("\\")", R"("\u0000")", R"("\ud83d\ude00")",
          "{}", "[]", "[[[]]]", R"({"": {"": ""}})", "true, false", R"("a", "ab", "abc", "")",
          "1, 1.0"}},
        {R"({"const": @})",
         {"null", "0", R"("")", "[]", "{}", R"({"a": [1, {"b": null}]})", R"("\u2028")", "-1.5"}},
        {R"({"type": "array", "minItems": @, "items": {"type": "boolean"}})",
         {"0", "1", "2", "10", "50"}},
        {R"({"type": "array", "maxItems": @})", {"0", "1", "5", "1000000"}},
        {R"({"type": "array", "prefixItems": [{"const": 1}], "items": @})",
         {"false", "true", R"({"type": "null"})", R"({"enum": [2]})"}},
        {R"({"type": "array", "items": {"type": "integer"}, "minItems": @, "maxItems": @})",
         {"0", "1", "3", "20"}},
    };
}

std::vector<std::string> nested_schemas() {
    std::vector<std::string> nested;
    for (const int depth : {1, 5, 10, 20, 40}) {
        nested.push_back(nested_arrays(depth));
        nested.push_back(nested_objects(depth));
    }
    return nested;
}

// Schemas with keywords that the compiler translates into others.
std::vector<Family> families_of_translations() {
    return {{R"({"type": "object", @})",
             {R"("oneOf": [true])", R"("if": true)", R"("then": true)", R"("else": true)",
              R"("patternProperties": {})", R"("patternProperties": {"^a": {"type": "null"}})",
              R"("multipleOf": 2)", R"("propertyNames": true)", R"("dependencies": {})",
              R"("dependentRequired": {})", R"("dependentSchemas": {})",
              R"("dependencies": {"a": ["b"], "c": {"required": ["d"]}})",
              R"("additionalItems": false)", R"("minProperties": 3)", R"("maxProperties": 1)",
              R"("items": [true])"}}};
}

std::vector<Family> families_of_structure() {
    return {
        {"@", nested_schemas()},
        {R"({"type": "object", "properties": {"@": {"type": "integer"}}, "required": ["@"],
             "additionalProperties": false})",
         names},
        {R"({"type": "object", "properties": {"@": {"const": 1}}, "required": ["@"],
             "additionalProperties": {"type": "boolean"}})",
         {names.begin(), names.begin() + 8}},
        {R"({"$defs": {"a/b": {"type": "null"}, "a~b": {"type": "null"}, "0": {"type": "null"},
             "": {"type": "null"}, "l": [{"type": "null"}]}, "$ref": "#/$defs/@"})",
         {"a~1b", "a~0b", "0", "", "l/0"}},
        {"@",
         {R"({"type": "object", "properties": {"next": {"$ref": "#"}}})",
          R"({"type": "array", "items": {"$ref": "#"}})",
          R"({"type": "object", "additionalProperties": {"$ref": "#"}})",
          R"({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]})",
          R"({"type": "array", "prefixItems": [{"$ref": "#"}], "items": false})",
          R"({"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}}, "b": {"type":
              "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"})",
          R"({"$defs": {"t": {"type": "object", "required": ["l", "r"], "properties":
              {"l": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]},
              "r": {"$ref": "#/$defs/t/properties/l"}}}},
              "$ref": "#/$defs/t"})",
          R"({"type": "array", "minItems": 1, "maxItems": 2, "items": {"anyOf": [{"$ref": "#"},
              {"type": "boolean"}]}})"}},
        {R"({"anyOf": [@]})",
         {R"({"const": 1}, {"const": 1})",
          R"({"type": "string"}, {"type": "string", "maxLength": 2})", "false, true", "true, true",
          R"(false, {"type": "null"})", R"({"type": "integer"}, {"type": "number"})",
          R"({"minLength": 2}, {"minimum": 2})", R"({"required": ["a"]}, {"required": ["b"]})",
          R"({"enum": [1, 2]}, {"enum": [2, 3]})", R"({"anyOf": [{"anyOf": [{"type": "null"}]}]})",
          R"({"items": {"type": "null"}}, {"properties": {"a": false}})",
          R"({"type": ["string", "null"]}, {"type": ["null", "array"]})"}},
        {R"({"allOf": [@]})",
         {R"({"type": "integer"}, {"minimum": 3})",
          R"({"type": ["integer", "string"]}, {"type": ["string", "null"]})",
          R"({"type": "integer", "minimum": 1}, {"maximum": 1})",
          R"({"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"minimum": 5}},
              "required": ["a"], "type": "object"})",
          R"({"enum": [1, 2, 3]}, {"enum": [2, 3]}, {"enum": [3, 2]})",
          R"({"anyOf": [{"const": 1}, {"const": 2}]}, {"anyOf": [{"const": 2}, {"const": 3}]})",
          R"({"items": {"type": "integer"}}, {"items": {"minimum": 2}}, {"type": "array",
              "minItems": 1})",
          R"({"pattern": "a"}, {"pattern": "b"}, {"type": "string"})",
          R"({"prefixItems": [true, {"type": "null"}]}, {"items": {"type": ["null", "string"]},
              "type": "array", "minItems": 2})",
          R"({"format": "date"}, {"type": "string"})",
          R"({"maxLength": 3}, {"minLength": 3}, {"type": "string"})",
          R"(true, {"type": "null"})"}},
        {R"({"type": "null", @})",
         {R"("title": "x")", R"("description": "{")", R"("default": 3)", R"("examples": [1])",
          R"("$comment": "not")", R"("deprecated": true)", R"("readOnly": true)",
          R"("$schema": "https://json-schema.org/draft/2020-12/schema")", R"("$id": "x")",
          R"("x-custom": {"oneOf": []})", R"("uniqueItems": false)", R"("minProperties": 0)"}},
        {"{@}",
         {R"("minLength": 3)", R"("minimum": 2)", R"("required": ["a"])", R"("properties": {})",
          R"("items": {"type": "null"})", R"("maxItems": 0)", R"("additionalProperties": false)",
          R"("minItems": 2)", R"("pattern": "^a$")", ""}},
        {"@",
         {"{\"enum\": [" + listed(R"("w#")", 2000) + "]}",
          "{\"type\": \"object\", \"properties\": {" + listed(R"("p#": {"type": "null"})", 200) +
              "}}",
          "{\"anyOf\": [" + listed(R"({"const": #})", 100) + "]}",
          "{\"type\": \"object\", \"required\": [" + listed(R"("r#")", 100) + "]}",
          "{\"allOf\": [" + listed(R"({"properties": {"p#": {"type": "null"}}})", 50) + "]}"}},
    };
}

std::vector<Family> refused_families() {
    return {
        {R"({"type": "object", @})",
         {R"("not": {"pattern": "a"})", R"("oneOf": [true, {"minProperties": 1}])",
          R"("if": {"pattern": "a"}, "then": {"required": ["b"]})",
          R"("patternProperties": {"^[ab]$": true}, "additionalProperties": false)",
          R"("contains": true, "maxContains": 2)", R"("minContains": 1)", R"("maxContains": 1)",
          R"("propertyNames": {"minLength": 2})",
          R"("unevaluatedProperties": {"type": "null"}, "anyOf": [true])",
          R"("unevaluatedItems": false, "anyOf": [true])", R"("$dynamicRef": "#")",
          R"("dependentRequired": {"a": [], "b": [], "c": [], "d": [], "e": []})",
          R"("uniqueItems": true)", R"("minProperties": 2, "properties": {"a": true, "b": true})",
          R"("maxProperties": 1, "properties": {"a": true, "b": true})"},
         "is not supported"},
        {R"({"type": "string", "pattern": "@"})",
         {"(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b"},
         "look-around"},
        {R"({"type": "string", "pattern": "@"})",
         {R"((a)\\1)", R"((?<x>a)\\k<x>)"},
         "back reference"},
        {R"({"type": "string", "pattern": "@"})", {R"(\\bfoo)"}, "word border"},
        {R"({"type": "string", "pattern": "@"})",
         {"(", "[a", "a{2,1}", "*a", R"(\\q)"},
         "the pattern"},
        {R"({"type": "string", "pattern": "@"})", {"a{2000}{2000}"}, "states"},
        {"@",
         {"false", R"({"type": "integer", "minimum": 5, "maximum": 4})",
          R"({"type": "string", "minLength": 3, "maxLength": 2, "pattern": "a"})",
          R"({"enum": []})", R"({"const": 1, "type": "string"})", R"({"$ref": "#"})",
          R"({"type": "object", "required": ["a"], "properties": {"a": false}})",
          R"({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1})",
          R"({"allOf": [{"type": "string"}, {"type": "null"}]})"},
         "nothing satisfies it"},
        {"@",
         {R"({"type": "strings"})", R"({"enum": 3})", R"({"type": "object", "required": "a"})",
          R"({"type": "object", "properties": []})", R"({"type": "string", "minLength": -1})",
          R"({"anyOf": []})", R"({"allOf": []})", R"({"$ref": 3})"},
         "schema: '"},
        {"@", {R"({"$ref": "https://example.org/s"})", R"({"$ref": "other.json"})"}, "'$ref' to "},
    };
}

// Draws one shortest answer and one longer answer under the schema's masks, and checks that both
// are valid.
void expect_sound(const OrderedJson& schema, const std::shared_ptr<const Grammar>& grammar) {
    static const Vocabulary vocabulary = small_vocabulary();
    MaskCache cache;
    std::mt19937_64 random(7);
    const std::uint32_t least = grammar->least(grammar->root());
    for (const std::uint32_t tokens : {least, least + 40}) {
        const Drawn drawn = draw_answer(grammar, vocabulary, cache, tokens, random, false);
        EXPECT_TRUE(is_valid(schema, drawn.text)) << schema << '\n' << drawn.text;
    }
}

TEST(HostileSchemasTest, EachCompilesOrIsRefusedForItsReason) {
    std::vector<Family> families = families_of_values();
    for (auto more : {families_of_structure(), families_of_translations(), refused_families()})
        families.insert(families.end(), more.begin(), more.end());

    std::size_t num_schemas = 0, num_refused = 0;
    for (const Family& family : families)
        for (const std::string& value : family.values) {
            const std::string words = with_value(family.words, value);
            const OrderedJson schema = OrderedJson::parse(words, nullptr, false);
            ASSERT_FALSE(schema.is_discarded()) << words;
            ++num_schemas;
            const auto grammar = grammar_of_schema(schema, "schema");
            if (family.refused == nullptr) {
                EXPECT_TRUE(grammar.ok()) << words << '\n' << grammar.error().message;
                if (grammar.ok()) expect_sound(schema, *grammar);
                continue;
            }
            ++num_refused;
            EXPECT_FALSE(grammar.ok()) << words;
            if (grammar.ok()) continue;
            EXPECT_NE(grammar.error().message.find(family.refused), std::string::npos)
                << words << '\n'
                << grammar.error().message;
        }
    EXPECT_GE(num_schemas, 300u);
    EXPECT_LE(num_refused, 60u);
}

}  // namespace
}  // namespace moex::test
