// Tests with schemas of a seeded generator that uses every supported keyword. All schemas compile,
// every random answer is valid, and valid instances in the stated form are admitted token by token.
// MOEX_SCHEMAS sets the number of schemas.
#include "tests/hub/api/grammar/grammar_fixture.h"
#include "tests/hub/api/grammar/schema_generator.h"

namespace moex::test {
namespace {

std::uint64_t num_schemas() {
    const char* const asked = std::getenv("MOEX_SCHEMAS");
    return asked ? std::strtoull(asked, nullptr, 10) : 200;
}

TEST(GeneratedSchemasTest, EveryAnswerIsValid) {
    const Vocabulary& vocabulary = demo_vocabulary();
    MaskCache cache;
    for (std::uint64_t seed = 0; seed < num_schemas(); ++seed) {
        SchemaGenerator generator(seed);
        const OrderedJson schema = generator.document();
        const auto grammar = grammar_of_schema(schema, "schema");
        ASSERT_TRUE(grammar.ok()) << schema << grammar.error().message;

        std::mt19937_64 random(seed);
        const std::uint32_t least = (*grammar)->least((*grammar)->root());
        for (const std::uint32_t tokens : {least, 2 * least, std::max(least, 100u)}) {
            const Drawn drawn = draw_answer(*grammar, vocabulary, cache, tokens, random, false);
            ASSERT_TRUE(is_valid(schema, drawn.text)) << "seed " << seed << '\n'
                                                      << schema << '\n'
                                                      << drawn.text;
        }
    }
}

TEST(GeneratedSchemasTest, ValidInstancesAreAdmitted) {
    for (std::uint64_t seed = 0; seed < num_schemas(); ++seed) {
        SchemaGenerator generator(seed);
        const OrderedJson schema = generator.document();
        const auto grammar = grammar_of_schema(schema, "schema", {.closes_objects = false});
        ASSERT_TRUE(grammar.ok()) << schema << grammar.error().message;
        for (int i = 0; i < 20; ++i) {
            const OrderedJson instance = generator.instance(schema);
            ASSERT_TRUE(is_valid(schema, instance.dump())) << schema << '\n' << instance;
            GrammarState state(*grammar);
            ASSERT_TRUE(state.take(json_text(instance)) && state.may_end())
                << "seed " << seed << '\n'
                << schema << '\n'
                << json_text(instance);
        }
    }
}

}  // namespace
}  // namespace moex::test
