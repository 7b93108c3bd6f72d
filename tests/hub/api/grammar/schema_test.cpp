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

void check(const std::vector<Case>& cases) {
    for (const Case& one : cases) {
        const OrderedJson schema = json(one.schema);
        for (const char* answer : one.good) EXPECT_TRUE(admits(schema, answer)) << schema << answer;
        for (const char* answer : one.bad) EXPECT_FALSE(admits(schema, answer)) << schema << answer;
    }
}

TEST(SchemaTest, EachKeywordAdmitsWhatItMeans) {
    const std::vector<Case> cases{
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
    check(cases);
}

TEST(SchemaTest, ConditionsAndNegationsBecomeBranches) {
    check({
        {R"({"type": "object",
             "properties": {"kind": {"enum": ["a", "b", "c"]}, "n": {"type": "integer"}},
             "required": ["kind"], "if": {"properties": {"kind": {"const": "a"}}},
             "then": {"required": ["n"]}, "else": {"properties": {"n": false}}})",
         {R"({"kind": "a", "n": 1})", R"({"kind": "b"})"},
         {R"({"kind": "a"})", R"({"kind": "b", "n": 1})", R"({"kind": "d"})"}},
        {R"({"type": "object", "properties": {"s": {"type": "string"}, "x": true},
             "if": {"properties": {"s": {"enum": ["on", "of"]}}, "required": ["s"]},
             "then": {"required": ["x"]}})",
         {"{}", R"({"s": "off"})", R"({"s": ""})", R"({"s": "o"})", R"({"s": "on", "x": 1})"},
         {R"({"s": "on"})", R"({"s": "of"})"}},
        {R"({"type": "integer", "if": {"minimum": 10}, "then": {"multipleOf": 10},
             "else": {"maximum": 3}})",
         {"3", "-7", "10", "20"},
         {"4", "11"}},
        {R"({"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"type": "null"}})",
         {"\"a\"", "null"},
         {"\"ab\"", "1"}},
        {R"({"if": {"const": 1}, "then": false, "else": {"type": ["integer", "null"]}})",
         {"null", "2", "10"},
         {"1", "true"}},
        {R"({"type": "string", "not": {"enum": ["", "ab", "abc", "\u65e5"]}})",
         {"\"a\"", "\"abcd\"", "\"b\"", "\"\u65e5\u65e5\""},
         {"\"\"", "\"ab\"", "\"abc\"", "\"\u65e5\"", "\"\\u0061b\""}},
        {R"({"type": ["integer", "boolean"], "not": {"enum": [2, 5, true]}})",
         {"1", "3", "25", "false"},
         {"2", "5", "true"}},
        {R"({"type": "array", "items": {"type": "integer"}, "not": {"minItems": 2}})",
         {"[]", "[1]"},
         {"[1, 2]"}},
        {R"({"not": {"allOf": [{"type": ["string", "null"]}, {"maxLength": 2}]},
             "type": ["string", "null"]})",
         {"\"abc\""},
         {"\"ab\"", "null"}},
    });
}

TEST(SchemaTest, MembersMayReachTheirBoundAndThemselves) {
    check({
        {R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}},
             "required": ["a"], "maxProperties": 2})",
         {R"({"a": 1})", R"({"a": 1, "b": 2})"},
         {"{}", R"({"a": 1, "c": 1})"}},
        {R"({"$defs": {"n": {"type": "object", "patternProperties": {"^x": {"items":
             {"$ref": "#/$defs/n", "title": "t"}, "type": "array"}}, "additionalProperties":
             false}},
             "$ref": "#/$defs/n"})",
         {"{}", R"({"x1": [{"xx": []}]})"},
         {R"({"y": []})", R"({"x": [1]})"}},
    });
}

TEST(SchemaTest, ContainedItemsComeFirst) {
    check({
        {R"({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}})",
         {"[5]", "[7, 1]"},
         {"[]", "[1]", "[1, 7]", "[\"a\"]"}},
        {R"({"type": "array", "contains": {"const": 1}, "minContains": 2, "maxItems": 3})",
         {"[1, 1]", "[1, 1, {}]"},
         {"[1]", "[1, 2, 1]"}},
        {R"({"type": "array", "items": {"const": 2}, "contains": {"const": 1}, "minContains": 0})",
         {"[]", "[2]"},
         {"[1]"}},
    });
}

TEST(SchemaTest, NumbersMayBeMultiplesOfFractions) {
    check({
        {R"({"type": "number", "multipleOf": 0.01})",
         {"0.07", "1.1", "-12.34", "5", "0", "0.070"},
         {"0.075", "1e2", "0.001"}},
        {R"({"type": "number", "multipleOf": 0.25, "minimum": 0.3, "maximum": 1})",
         {"0.5", "0.75", "1", "1.0"},
         {"0.25", "0.6", "1.25"}},
        {R"({"type": "number", "multipleOf": 2.5})", {"2.5", "5", "10.0"}, {"2", "3.5"}},
        {R"({"type": "integer", "multipleOf": 2.5})", {"5", "-10"}, {"2", "3"}},
        {R"({"allOf": [{"multipleOf": 0.2}, {"multipleOf": 0.3}], "type": "number"})",
         {"0.6", "1.2", "3"},
         {"0.2", "0.3", "1"}},
    });
    EXPECT_FALSE(grammar_of_schema(json(R"({"multipleOf": 1e-20})"), "schema").ok());
}

TEST(SchemaTest, ObjectsAreClosedUnlessTheSchemaOpensThem) {
    check({
        {R"({"properties": {"a": {"const": 1}}, "type": "object"})",
         {"{}", R"({"a": 1})"},
         {R"({"b": 1})", R"({"a": 1, "b": 1})"}},
        {R"({"type": "object"})", {"{}", R"({"b": 1})"}, {}},
        {R"({"type": "object", "properties": {}})", {"{}"}, {R"({"b": 1})"}},
        {R"({"type": "object", "properties": {"a": true}, "additionalProperties": true})",
         {R"({"a": 1, "b": 1})"},
         {}},
        {R"({"type": "object", "required": ["k"]})", {R"({"k": 1, "l": 1})"}, {"{}"}},
        {R"({"type": "object", "properties": {"a": false}, "additionalProperties": true})",
         {R"({"b": 1})"},
         {R"({"a": 1})"}},
        {R"({"allOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}}],
             "type": "object", "unevaluatedProperties": false})",
         {R"({"a": 1, "b": 2})"},
         {R"({"c": 1})"}},
    });
    const OrderedJson schema = json(R"({"type": "object", "properties": {"a": true}})");
    const auto open = grammar_of_schema(schema, "schema", {.closes_objects = false});
    ASSERT_TRUE(open.ok());
    EXPECT_TRUE(GrammarState(*open).take(R"({"b": 1})")) << "the standard's reading";
}

TEST(SchemaTest, BranchesOfOneOfExcludeEachOther) {
    check({
        {R"({"oneOf": [{"type": "null"}, {"type": "integer"}]})", {"null", "3"}, {"\"a\"", "1.5"}},
        {R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "car"},
             "doors": {"enum": [2, 4]}}, "required": ["kind"]},
             {"type": "object", "properties": {"kind": {"const": "boat"}, "sails": {"const": 1}},
             "required": ["kind"]}]})",
         {R"({"kind": "car", "doors": 4})", R"({"kind": "boat", "sails": 1})"},
         {R"({"kind": "boat", "doors": 4})", "{}"}},
        {R"({"type": "object", "properties": {"id": {"const": 1}, "name": {"const": "n"}},
             "oneOf": [{"required": ["id"]}, {"required": ["name"]}]})",
         {R"({"id": 1})", R"({"name": "n"})"},
         {"{}", R"({"id": 1, "name": "n"})"}},
        {R"({"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 7}]})",
         {"3", "7"},
         {"5"}},
        {R"({"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]})",
         {"\"ax\"", "\"b\""},
         {"\"c\""}},
        {R"({"oneOf": [{"enum": ["x", "y"]}, {"enum": ["z", 1]}]})", {"\"x\"", "1"}, {"2"}},
        {R"({"$defs": {"a": {"type": "object", "properties": {"a": {"const": 1}},
             "required": ["a"]}}, "oneOf": [{"$ref": "#/$defs/a"}, {"type": "array"}]})",
         {R"({"a": 1})", "[]"},
         {"{}"}},
    });
}

TEST(SchemaTest, FurtherMembersMatchThePatternsOfTheirNames) {
    check({
        {R"({"type": "object", "patternProperties": {"^x-": {"type": "boolean"}},
             "additionalProperties": false})",
         {"{}", R"({"x-a": true})", R"({"x-": false, "x-b": true})"},
         {R"({"a": true})", R"({"x-a": 1})", R"({"x-a": true, "x-a": true})",
          R"({"x-a": true, "\u0078-a": true})"}},
        {R"({"type": "object", "properties": {"n_own": {"type": "integer"}},
             "patternProperties": {"^n_": {"minimum": 5}}})",
         {R"({"n_own": 5})", R"({"n_x": "a"})"},
         {R"({"n_own": 4})", R"({"b": 1})", R"({"n_x": 3})"}},
        {R"({"type": "object", "patternProperties": {"[0-9]$": {"const": 1}},
             "additionalProperties": {"type": "integer"}})",
         {R"({"a": 1})"},
         {R"({"a": 2})"}},
        {R"({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"},
             "additionalProperties": {"const": 1}})",
         {R"({"ab": 1})"},
         {R"({"A": 1})", R"({"ab": 2})"}},
        {R"({"type": "object", "propertyNames": {"enum": ["n", "m"]},
             "additionalProperties": {"const": 1}})",
         {R"({"n": 1, "m": 1})", "{}"},
         {R"({"o": 1})"}},
        {R"({"type": "object", "propertyNames": {"type": "string"}, "maxProperties": 1})",
         {"{}", R"({"q": 1})"},
         {R"({"q": 1, "r": 1})"}},
        {R"({"type": "object", "minProperties": 2, "additionalProperties": {"const": 1}})",
         {R"({"a": 1, "b": 1})", R"({"a": 1, "b": 1, "c": 1})"},
         {"{}", R"({"a": 1})"}},
        {R"({"type": "object", "minProperties": 1, "properties": {"a": {"const": 1},
             "b": {"const": 2}}})",
         {R"({"a": 1})", R"({"b": 2})", R"({"a": 1, "b": 2})"},
         {"{}", R"({"b": 2, "a": 1})"}},
    });
}

TEST(SchemaTest, OlderAndRarerKeywordsAreTranslated) {
    check({
        {R"({"type": "array", "items": [{"const": 1}, {"const": 2}], "additionalItems": false})",
         {"[1, 2]", "[1]"},
         {"[1, 2, 3]", "[2]"}},
        {R"({"type": "array", "items": {"type": "null"}, "additionalItems": false, "maxItems": 2})",
         {"[null, null]"},
         {"[1]"}},
        {R"({"type": "integer", "minimum": 3, "exclusiveMinimum": true, "maximum": 5,
             "exclusiveMaximum": false})",
         {"4", "5"},
         {"3", "6"}},
        {R"({"type": "integer", "multipleOf": 7, "minimum": 1})", {"7", "70"}, {"0", "8"}},
        {R"({"type": "number", "multipleOf": 5})", {"15", "-5"}, {"2", "2.5"}},
        {R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}},
             "dependentRequired": {"a": ["b"]}})",
         {"{}", R"({"b": 2})", R"({"a": 1, "b": 2})"},
         {R"({"a": 1})"}},
        {R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"enum": [2, 3]}},
             "dependencies": {"a": {"properties": {"b": {"const": 3}}}}})",
         {R"({"b": 2})", R"({"a": 1, "b": 3})"},
         {R"({"a": 1, "b": 2})"}},
        {R"({"$ref": "#/definitions/Pair%3Cint%2C%20int%3E", "definitions":
             {"Pair<int, int>": {"const": 4}}})",
         {"4"},
         {"5"}},
        {R"({"$ref": "#node", "$defs": {"n": {"$anchor": "node", "const": 8}}})", {"8"}, {"9"}},
        {R"({"not": {"type": ["object", "array", "string", "number"]}})", {"null", "true"}, {"1"}},
        {R"({"type": "object", "properties": {"a": true, "b": true}, "not": {"required": ["a"]}})",
         {R"({"b": 1})", "{}"},
         {R"({"a": 1})"}},
        {R"({"enum": [1, 2, 3], "not": {"const": 2}})", {"1", "3"}, {"2"}},
        {R"({"type": "string", "format": "my-own"})", {"\"any text\""}, {"1"}},
        {R"({"type": "integer", "format": "int32"})",
         {"2147483647", "-2147483648"},
         {"2147483648"}},
        {R"({"type": "string", "format": "uri"})",
         {"\"https://a.example:8443/p/q?x=1#f\"", "\"mailto:a@b.example\"", "\"urn:isbn:1\""},
         {"\"no scheme\"", "\"//a.example\"", "\"http://a b\"", "\"http://a:b/\""}},
        {R"~({"type": "string", "pattern": "^(?!no|[)]x)[a-z)]{2,}$"})~",
         {"\"ok\"", "\"ano\"", "\")y\""},
         {"\"no\"", "\"nox\"", "\")x\"", "\"a\""}},
        {R"~({"type": "string", "pattern": "^(?=.*[0-9])(?=.*[A-Z]).{3,5}$"})~",
         {"\"aA0\"", "\"0AA\""},
         {"\"aaa\"", "\"aA00bb\"", "\"A0\""}},
        {R"({"type": "string", "pattern": "^[^x]{2,4000}$", "maxLength": 3})",
         {"\"ab\"", "\"\\u00e9b\\n\""},
         {"\"a\"", "\"abcd\"", "\"ax\"", "\"a\\u0078\""}},
        {R"({"type": "string", "pattern": "^\\p{Lu}{1,2000}$"})", {"\"AÉ\""}, {"\"\"", "\"a\""}},
        {R"({"type": "string", "format": "hostname"})",
         {"\"a.example\"", "\"localhost\""},
         {"\"-a\"", "\"a..b\"", "\"a_b\""}},
        {R"({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]})",
         {"\"10.0.0.1\"", "\"::\"", "\"::1\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\"", "\"1:2::\""},
         {"\"1:2:3\"", "\"1::2::3\"", "\"1:2:3:4:5:6:7:8:9\"", "\"12345::\"", "\"a host\""}},
        {R"({"type": "string", "format": "json-pointer"})",
         {"\"\"", "\"/a/0\"", "\"/~0~1\"", "\"/\""},
         {"\"a\"", "\"/~2\""}},
        {R"({"type": "string", "format": "relative-json-pointer"})",
         {"\"0\"", "\"1/a\"", "\"2#\""},
         {"\"\"", "\"/a\"", "\"01\""}},
        {R"({"type": "string", "format": "uri-reference"})",
         {"\"\"", "\"a/b?c#d\"", "\"/a\"", "\"https://a.example/b\"", "\"#part\""},
         {"\"a b\"", "\"%zz\""}},
        {R"({"type": "string", "format": "uri-template"})",
         {"\"/a/{b}{?c,d*}\"", "\"\""},
         {"\"/a/{b\"", "\"{}\""}},
        {R"({"type": "string", "format": "duration"})",
         {"\"P1D\"", "\"PT5M\"", "\"P1Y2M3DT4H5M6S\"", "\"P2W\""},
         {"\"P\"", "\"PT\"", "\"1D\"", "\"P1W2D\""}},
    });
}

// If a tool is not strict, the schema of its arguments is compiled in this way.
TEST(SchemaTest, WeakenedSchemaLeavesOutTheKeywordAlone) {
    const OrderedJson schema = json(R"~({"type": "object", "properties": {
        "link": {"type": "string", "pattern": "h(?=t)"},
        "tags": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true},
        "size": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        "odd": {"type": "any"}}, "required": ["link"]})~");
    std::vector<Weakening> weakened;
    const auto grammar = grammar_of_schema(schema, "tools.x", {.weakens = true}, &weakened);
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    const auto admits = [&](std::string_view answer) {
        GrammarState state(*grammar);
        return state.take(answer) && state.may_end();
    };
    EXPECT_TRUE(admits(R"({"link": "x", "tags": [1, 1], "size": 2, "odd": [null]})"));
    EXPECT_FALSE(admits(R"({"tags": []})")) << "a required member is missing";
    EXPECT_FALSE(admits(R"({"link": 1})")) << "a wrong type";
    EXPECT_FALSE(admits(R"({"link": "x", "tags": ["a"]})"));
    EXPECT_FALSE(admits(R"({"link": "x", "size": "a"})"));

    const std::vector<Weakening> wanted{{"properties.link", "pattern"},
                                        {"properties.tags", "uniqueItems"},
                                        {"properties.size", "oneOf"},
                                        {"properties.odd", "type"}};
    EXPECT_EQ(weakened, wanted);
}

TEST(SchemaTest, JudgeKnowsTheKeywordsThatGrammarsLack) {
    const std::pair<const char*, std::pair<const char*, const char*>> cases[] = {
        {R"({"uniqueItems": true})", {"[1, 2]", "[1, 1.0]"}},
        {R"({"contains": {"const": 3}, "maxContains": 1})", {"[3]", "[3, 3]"}},
        {R"({"contains": {"const": 3}})", {"[3]", "[]"}},
        {R"({"oneOf": [{"type": "integer"}, {"minimum": 3}]})", {"2", "4"}},
        {R"({"not": {"const": 1}})", {"2", "1"}},
        {R"({"if": {"const": 1}, "then": false, "else": {"type": "null"}})", {"null", "1"}},
        {R"({"propertyNames": {"maxLength": 1}})", {R"({"a": 1})", R"({"ab": 1})"}},
        {R"({"dependentRequired": {"a": ["b"]}})", {R"({"b": 1})", R"({"a": 1})"}},
        {R"({"multipleOf": 0.5})", {"1.5", "1.25"}},
        {R"({"maximum": 18446744073709551614})", {"18446744073709551614", "18446744073709551615"}},
        {R"({"minimum": 4, "exclusiveMinimum": true})", {"5", "4"}},
    };
    for (const auto& [schema, values] : cases) {
        const SchemaJudge judge(json(schema));
        EXPECT_TRUE(judge.admits(json(values.first)).value()) << schema;
        EXPECT_FALSE(judge.admits(json(values.second)).value()) << schema;
    }
    EXPECT_FALSE(SchemaJudge(json(R"({"unevaluatedItems": false})")).admits(json("[]")).ok());
}

TEST(SchemaTest, EndlessJudgementIsAnError) {
    const SchemaJudge judge(
        json(R"({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}},
                 "$ref": "#/$defs/a"})"));
    EXPECT_FALSE(judge.admits(json("1")).ok());
}

TEST(SchemaTest, UnsupportedSchemaIsRefusedByNameAndPath) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"not": {"pattern": "a"}})", "schema: 'not'"},
        {R"({"not": {}})", "nothing satisfies it"},
        {R"({"properties": {"a": {"oneOf": []}}})", "schema.properties.a: 'oneOf' is no list"},
        {R"({"oneOf": [{"minimum": 2}, {"maximum": 4}]})", "where a value may fit several"},
        {R"({"if": {"pattern": "a"}, "then": {"const": 2}})", "'if'"},
        {R"({"type": "object", "patternProperties": {"^a{3}$": {}},
             "additionalProperties": false})",
         "schema: 'patternProperties' whose names have a bounded length"},
        {R"({"uniqueItems": true})", "'uniqueItems'"},
        {R"({"contains": true, "maxContains": 2})", "'contains'"},
        {R"({"type": "object", "minProperties": 2, "properties": {"a": {}, "b": {}, "c": {}}})",
         "'minProperties'"},
        {R"({"anyOf": [true, {"multipleOf": 1e-20}]})", "schema.anyOf[1]: 'multipleOf'"},
        {R"({"items": {"propertyNames": {"maxLength": 3}}})", "schema.items: 'propertyNames'"},
        {R"({"unevaluatedItems": false, "anyOf": [true]})", "'unevaluatedItems'"},
        {R"({"type": "integer", "minimum": 1e38})", "more than 37 digits"},
        {R"({"$ref": "https://example.org/s"})", "'$ref' to https://example.org/s"},
        {R"({"$ref": "#/$defs/none"})", "which does not exist"},
        {R"({"type": "string", "pattern": "x(?=a)b"})", "look-around"},
        {R"({"type": "string", "pattern": "^(?=a)b|c"})", "look-around"},
        {R"({"type": "string", "pattern": "(a)\\1"})", "a back reference"},
        {R"({"type": "string", "pattern": "a{2000}{2000}"})", "states"},
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
