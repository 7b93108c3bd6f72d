// Compares masks with those of the slow fill_mask_plain() at the borders of structure, lengths,
// names and budgets.
#include "tests/hub/api/grammar/grammar_fixture.h"

namespace moex::test {
namespace {

const char* const schemas[] = {
    R"({"type": "object"})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "name": {"type": "string"}},
        "required": ["name"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 12}})",
    R"({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 4},
        "minItems": 2})",
    R"({"type": "array", "items": {"type": "string", "pattern": "^(ab|\\n)+x?$"}, "maxItems": 3})",
    R"({"type": "number", "minimum": -1.5, "exclusiveMaximum": 12})",
    R"({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "array",
        "items": {"enum": ["a", "ab", "abc", 1, 12, true]}}]})",
};

TEST(MaskTest, EveryMaskIsWhatTryingEachTokenGives) {
    const Vocabulary vocabulary = small_vocabulary();
    MaskCache cache;
    std::mt19937_64 random(20261121);
    for (const char* words : schemas) {
        const OrderedJson schema = json(words);
        const auto grammar = grammar_of_schema(schema, "schema").value();
        const std::uint32_t least = grammar->least(grammar->root());
        for (const std::uint32_t tokens : {least, least + 1, 2 * least, least + 20, 60u}) {
            if (tokens < least) continue;
            for (int round = 0; round < 6; ++round) {
                const Drawn drawn = draw_answer(grammar, vocabulary, cache, tokens, random, true);
                ASSERT_TRUE(is_valid(schema, drawn.text)) << words << '\n' << drawn.text;
            }
        }
        if (HasFailure()) return;
    }
}

TEST(MaskTest, SpecialTokensAreForbiddenAndEndsOnlyWhereTheAnswerMayEnd) {
    const Vocabulary vocabulary = small_vocabulary();
    MaskCache cache;
    const auto grammar = grammar_of_schema(json(R"({"type": "integer"})"), "schema").value();
    GrammarState state(grammar);
    TokenBits bits(vocabulary.num_words());
    const TokenId end = vocabulary.end_ids()[0];
    fill_mask(state, 20, vocabulary, cache, bits);
    EXPECT_FALSE(has_bit(bits, end));
    EXPECT_FALSE(has_bit(bits, end + 1)) << "a special token";
    EXPECT_FALSE(has_bit(bits, end + 2)) << "padding";
    ASSERT_TRUE(state.take("4"));
    fill_mask(state, 20, vocabulary, cache, bits);
    EXPECT_TRUE(has_bit(bits, end));
    EXPECT_TRUE(has_bit(bits, '2'));
    fill_mask(state, 1, vocabulary, cache, bits);
    EXPECT_TRUE(has_bit(bits, '2')) << "the last token may still be one that can end";
}

TEST(MaskTest, TheCacheIsBoundedInBytesAndKnowsNoCounters) {
    const Vocabulary vocabulary = small_vocabulary();
    MaskCache small(20'000);
    std::mt19937_64 random(3);
    for (const char* words : schemas) {
        const auto grammar = grammar_of_schema(json(words), "schema").value();
        draw_answer(grammar, vocabulary, small, 80, random, false);
        EXPECT_LE(small.num_bytes(), 20'000u + 8'000u) << "one entry may stand alone";
    }

    MaskCache cache;
    const auto text = grammar_of_schema(
        json(R"({"type": "array", "items": {"type": "string", "maxLength": 40}})"), "schema");
    GrammarState state(*text);
    TokenBits bits(vocabulary.num_words());
    ASSERT_TRUE(state.take("[\""));
    for (int i = 0; i < 60; ++i) {
        fill_mask(state, 1000, vocabulary, cache, bits);
        ASSERT_TRUE(state.take(i % 20 == 19 ? "\", \"" : "a"));
    }
    EXPECT_EQ(cache.num_walks(), 1u) << "one inside of a string, however long it is";
}

// Checks that the masks allow valid instances, cut into tokens by the tokenizer.
TEST(MaskTest, TokensOverTheBordersOfStructureAreAdmitted) {
    const Vocabulary vocabulary = small_vocabulary();
    MaskCache cache;
    const auto grammar = grammar_of_schema(
        json(R"({"type": "object", "properties": {"a": {"type": "integer"}},
                 "additionalProperties": true})"),
        "schema");
    GrammarState state(*grammar);
    TokenBits bits(vocabulary.num_words());
    const auto say = [&](std::string_view token) {
        for (TokenId id = 0; id < vocabulary.size(); ++id) {
            if (vocabulary.bytes(id) != token) continue;
            fill_mask(state, 100, vocabulary, cache, bits);
            EXPECT_TRUE(has_bit(bits, id)) << token;
            EXPECT_TRUE(take_token(state, vocabulary, id)) << token;
        }
    };
    for (const char* token : {"{\"", "a\": 1, \"", "b\": ", "[[", "999", "]]", ", ", "\"", "name",
                              "\": {\"", "id\": \"", "\"}}"})
        say(token);
    EXPECT_TRUE(state.may_end());
}

}  // namespace
}  // namespace moex::test
