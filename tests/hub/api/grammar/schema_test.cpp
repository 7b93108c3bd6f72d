// Tests of schemas: admitted texts, and refused schemas with their errors.
#include "tests/hub/api/grammar/grammar_fixture.h"

namespace moex::test {
namespace {

bool admits(const OrderedJson& schema, std::string_view answer) {
    const auto grammar = grammar_of_schema(schema, "schema");
    if (!grammar.ok()) {
        ADD_FAILURE() << grammar.error().message;
        return false;
    }
    GrammarState state(*grammar);
    return state.take(answer) && state.may_end();
}

struct Case {
    const char* schema;
    std::vector<const char*> good, bad;
};

TEST(SchemaTest, EachKeywordAdmitsWhatItMeans) {
    const Case cases[] = {
        {R"({"type": "boolean"})", {"true", "false"}, {"1", "True", "null", " true", "true "}},
        {R"({"type": ["integer", "null"]})", {"12", "null"}, {"1.5", "\"1\""}},
        {R"({"enum": [1, 12, "a\"b", null, {"k": [1, {}]}]})",
         {"1", "12", R"("a\"b")", "null", R"({"k": [1, {}]})"},
         {"2", "\"a\"", R"({"k":[1,{}]})"}},
        {R"({"const": "x", "type": ["string", "number"]})", {"\"x\""}, {"\"y\""}},
        {R"({"enum": [1, "a", 7], "type": "integer", "minimum": 5})", {"7"}, {"1", "\"a\""}},
        {R"({"type": "string", "minLength": 2, "maxLength": 3})",
         {"\"ab\"", "\"\xc3\xa9\xc3\xa9\"", R"("\u00e9\n")", R"("\ud83d\ude00ab")"},
         {"\"a\"", "\"abcd\"", R"("\ud83d\ude00")"}},
        {R"({"type": "string", "pattern": "b+$"})", {"\"abb\"", R"("\u0062")"}, {"\"ba\"", "\"\""}},
        {R"({"type": "string", "pattern": "^[ab]*$", "minLength": 2, "maxLength": 2})",
         {"\"ab\""},
         {"\"a\"", "\"aba\"", "\"ac\""}},
        {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
         {"[1]", "[1, 2, 3]"},
         {"[]", "[1,2]", "[1, 2, 3, 4]", "[1, ]"}},
        {R"({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": false})",
         {"[]", "[1]", "[1, 2]"},
         {"[2]", "[1, 2, 3]"}},
        {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
             "required": ["b"], "additionalProperties": false})",
         {R"({"b": null})", R"({"a": 1, "b": null})"},
         {"{}", R"({"a": 1})", R"({"b": null, "a": 1})", R"({"b":null})",
          R"({"b": null, "c": 1})"}},
        {R"({"type": "object", "properties": {"a": {"const": 1}},
             "additionalProperties": {"type": "boolean"}})",
         {"{}", R"({"a": 1})", R"({"x": true})", R"({"a": 1, "x": true, "": false})"},
         {R"({"a": true})", R"({"\u0061": true})", R"({"x": 1})", R"({"x": true, "x": true})",
          R"({"x": true, "\u0078": true})", R"({"x": true, "a": 1})"}},
        {R"({"anyOf": [{"type": "string"}, {"type": "object", "required": ["k"]}]})",
         {"\"s\"", R"({"k": []})", R"({"k": 1, "l": 2})"},
         {"1", "{}"}},
        {R"({"allOf": [{"properties": {"a": {"minimum": 2}}, "required": ["a"]},
                       {"properties": {"a": {"type": "integer", "maximum": 3}, "b": true}}],
             "type": "object", "additionalProperties": true})",
         {R"({"a": 2})", R"({"a": 3, "b": "x"})"},
         {"{}", R"({"a": 1})", R"({"a": 4})", R"({"a": 2.5})"}},
        {R"({"$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"},
             "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
             "required": ["v", "next"], "additionalProperties": false}}, "$ref": "#/$defs/n"})",
         {R"({"v": 1, "next": null})", R"({"v": 1, "next": {"v": 2, "next": null}})"},
         {R"({"v": 1})", R"({"v": 1, "next": {}})"}},
        {R"({"type": "string", "format": "date"})",
         {"\"2024-02-29\"", "\"1900-02-28\"", "\"2000-02-29\""},
         {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\""}},
        {R"({"type": "string", "format": "date-time"})",
         {"\"2024-01-01T00:00:00Z\"", "\"2024-01-01T23:59:59.5+02:00\""},
         {"\"2024-01-01 00:00:00Z\"", "\"2024-01-01T24:00:00Z\"", "\"2024-01-01T00:00:00\""}},
        {R"({"type": "string", "format": "uuid"})",
         {"\"123e4567-e89b-12d3-a456-426614174000\""},
         {"\"123e4567\""}},
        {R"({"type": "string", "format": "ipv4"})",
         {"\"127.0.0.1\"", "\"255.255.255.255\""},
         {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
        {R"({"type": "string", "format": "email"})", {"\"a.b@c.de\""}, {"\"a@\"", "\"a b@c.de\""}},
        {"true", {"1", "[{}, null]", R"({"a": {"b": []}})"}, {"", "{", "nul"}},
    };
    for (const Case& one : cases) {
        const OrderedJson schema = json(one.schema);
        for (const char* answer : one.good) EXPECT_TRUE(admits(schema, answer)) << schema << answer;
        for (const char* answer : one.bad) EXPECT_FALSE(admits(schema, answer)) << schema << answer;
    }
}

TEST(SchemaTest, UnsupportedSchemaIsRefusedByNameAndPath) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"not": {}})", "schema: 'not'"},
        {R"({"properties": {"a": {"oneOf": []}}})", "schema.properties.a: 'oneOf'"},
        {R"({"if": true})", "'if'"},
        {R"({"items": {"patternProperties": {}}})", "schema.items: 'patternProperties'"},
        {R"({"uniqueItems": true})", "'uniqueItems'"},
        {R"({"contains": true})", "'contains'"},
        {R"({"minProperties": 1})", "'minProperties'"},
        {R"({"anyOf": [true, {"multipleOf": 3}]})", "schema.anyOf[1]: 'multipleOf'"},
        {R"({"unevaluatedProperties": false})", "'unevaluatedProperties'"},
        {R"({"$ref": "https://example.org/s"})", "'$ref' to https://example.org/s"},
        {R"({"$ref": "#/$defs/none"})", "which does not exist"},
        {R"({"type": "string", "pattern": "(?=a)b"})", "look-around"},
        {R"({"type": "string", "pattern": "(a)\\1"})", "a back reference"},
        {R"({"type": "string", "pattern": "a{2000}{2000}"})", "states"},
        {R"({"type": "string", "format": "hostname"})", "format \"hostname\""},
        {R"({"type": "strings"})", "'type'"},
        {R"({"type": "integer", "minimum": 5, "maximum": 4})", "nothing satisfies it"},
        {"false", "nothing satisfies it"},
        {R"({"properties": {"a": false}, "required": ["a"], "type": "object"})",
         "nothing satisfies it"},
        {R"({"$ref": "#"})", "nothing satisfies it"},
        {R"({"$defs": {"a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}},
             "required": ["x"]}}, "$ref": "#/$defs/a"})",
         "nothing satisfies it"},
        {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "refers to itself"},
        {R"([])", "a schema is an object"},
        {R"({"enum": 3})", "'enum' is no list"},
    };
    for (const auto& [words, wanted] : cases) {
        const auto grammar = grammar_of_schema(json(words), "schema");
        ASSERT_FALSE(grammar.ok()) << words;
        EXPECT_NE(grammar.error().message.find(wanted), std::string::npos)
            << words << ": " << grammar.error().message;
    }
}

TEST(SchemaTest, NestingIsBoundedAndNeverTrapsAnAnswer) {
    const auto grammar = grammar_of_schema(json(R"({"type": "array", "items": {"$ref": "#"}})"),
                                           "s");
    ASSERT_TRUE(grammar.ok());
    GrammarState state(*grammar);
    std::uint32_t depth = 0;
    while (depth < 1000 && state.take('[')) ++depth;
    EXPECT_GT(depth, 50u);
    EXPECT_LT(depth, 200u);
    EXPECT_EQ(state.least(), depth);
    EXPECT_TRUE(state.take(std::string(depth, ']')));
    EXPECT_TRUE(state.may_end());
}

}  // namespace
}  // namespace moex::test
