// Tests of the tokens that AnswerMask::forced() guesses: they spell a text that no answer can do
// without, which trying every byte shows.
#include "hub/api/jobs/answer_mask.h"
#include "tests/hub/api/grammar/grammar_fixture.h"

namespace moex::test {
namespace {

// Returns the bytes that may follow, by trying each of them.
std::string next_bytes(const GrammarState& state) {
    std::string bytes;
    for (unsigned byte = 0; byte < 256; ++byte) {
        GrammarState after = state;
        if (after.take(static_cast<unsigned char>(byte))) bytes += static_cast<char>(byte);
    }
    return bytes;
}

const char* const forms[] = {
    R"({"type": "object", "properties": {"city_name": {"type": "string", "maxLength": 5},
        "is_capital": {"type": "boolean"}}, "required": ["city_name", "is_capital"],
        "additionalProperties": false})",
    R"({"type": "object", "properties": {"kind": {"const": "a long constant text"},
        "count": {"type": "integer"}}, "required": ["kind"], "additionalProperties": false})",
    R"({"type": "array", "items": {"enum": ["Norway", "Northland", "Finland"]}, "minItems": 2,
        "maxItems": 2})",
    R"({"type": "object"})",
};

TEST(ForcedTextTest, EveryForcedTokenSpellsTheOnlyTextThatMayFollow) {
    const auto maker = std::make_shared<MaskMaker>(small_vocabulary());
    const Vocabulary& vocabulary = maker->vocabulary();
    std::mt19937_64 random(20261128);
    std::size_t forced_tokens = 0, forced_bytes = 0;
    for (const char* words : forms) {
        SCOPED_TRACE(words);
        const auto grammar = grammar_of_schema(json(words), "schema").value();
        for (int round = 0; round < 4; ++round) {
            const std::string answer =
                draw_answer(grammar, vocabulary, maker->cache(), 120, random, false).text;
            const auto mask = std::make_shared<AnswerMask>(maker, GrammarState(grammar));
            GrammarState state(grammar);
            std::vector<TokenId> said;
            for (const char byte : answer) {
                const auto left = static_cast<std::uint32_t>(160 - said.size());
                for (const std::size_t most : {1u, 5u}) {
                    const auto ids = mask->forced(said, most);
                    ASSERT_LE(ids.size(), most);
                    GrammarState ahead = state;
                    forced_tokens += ids.size();
                    for (const TokenId id : ids)
                        for (const char next : vocabulary.bytes(id)) {
                            ASSERT_FALSE(ahead.may_end());
                            ASSERT_EQ(next_bytes(ahead), std::string(1, next)) << answer;
                            ASSERT_TRUE(ahead.take(static_cast<unsigned char>(next)));
                            ++forced_bytes;
                        }
                }
                // A guess leaves the masks as they are.
                const auto bits = mask->allowed(said, left);
                TokenBits wanted(vocabulary.num_words());
                fill_mask_plain(state, left, vocabulary, wanted);
                ASSERT_TRUE(std::ranges::equal(bits, wanted));
                ASSERT_TRUE(state.take(static_cast<unsigned char>(byte)));
                said.push_back(static_cast<unsigned char>(byte));
            }
        }
    }
    EXPECT_GT(forced_tokens, 200u);
    EXPECT_GT(forced_bytes, forced_tokens) << "the longest token is taken";
}

TEST(ForcedTextTest, NamesOfRequiredMembersAreForcedInTheLongestTokens) {
    const auto maker = std::make_shared<MaskMaker>(small_vocabulary());
    const auto grammar = grammar_of_schema(json(forms[0]), "schema").value();
    const auto mask = std::make_shared<AnswerMask>(maker, GrammarState(grammar));
    std::string spelled;
    for (const TokenId id : mask->forced({}, 8)) spelled += maker->vocabulary().bytes(id);
    EXPECT_EQ(spelled, "{\"city_name\": \"");
}

}  // namespace
}  // namespace moex::test
