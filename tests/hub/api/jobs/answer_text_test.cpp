// Tests of stop strings that cross pieces, and of the borders between tokens and text.
#include "hub/api/jobs/answer_text.h"

#include <algorithm>
#include <random>

#include "tests/hub/api/api_fixture.h"

namespace moex::test {
namespace {

// Passes `pieces` through the stop filter, and returns all text that `filter` shows.
std::string shown(StopFilter filter, const std::vector<std::string>& pieces) {
    std::string out;
    for (const std::string& piece : pieces) out += filter.push(piece);
    return out + filter.finish();
}

TEST(StopFilterTest, AStopAcrossPiecesIsFound) {
    EXPECT_EQ(shown(StopFilter({"END"}), {"one E", "N", "D two"}), "one ");
    EXPECT_EQ(shown(StopFilter({"END"}), {"one E", "N", "d two"}), "one ENd two");
    EXPECT_EQ(shown(StopFilter({"aab"}), {"a", "a", "a", "b"}), "a");
    EXPECT_EQ(shown(StopFilter({"abc", "b"}), {"a", "b", "c"}), "a");
    EXPECT_EQ(shown(StopFilter({}), {"a", "b"}), "ab");
    EXPECT_EQ(shown(StopFilter({"x"}), {"x"}), "");
}

TEST(StopFilterTest, TextThatCannotBecomeAStopIsShownAtOnce) {
    StopFilter filter({"END"});
    EXPECT_EQ(filter.push("hello "), "hello ");
    EXPECT_EQ(filter.push("E"), "");
    EXPECT_EQ(filter.push("a"), "Ea");
    EXPECT_FALSE(filter.stopped());
    EXPECT_EQ(filter.push(" END more"), " ");
    EXPECT_TRUE(filter.stopped());
    EXPECT_EQ(filter.push("later"), "");
}

TEST(StopFilterTest, CutsDoNotDependOnThePieces) {
    std::mt19937 random(3);
    for (int i = 0; i < 2000; ++i) {
        std::string whole;
        for (int k = 0; k < 30; ++k) whole += static_cast<char>('a' + random() % 3);
        const std::vector<std::string> stops{"abca", "ccb"};
        std::size_t cut = whole.size();
        for (const std::string& stop : stops)
            cut = std::min(cut, std::min(whole.find(stop), whole.size()));
        StopFilter filter(stops);
        std::string out;
        for (std::size_t at = 0; at < whole.size() && !filter.stopped();) {
            // Push one letter at a time: the stop string that ends first decides, as it does when
            // tokens are pushed.
            out += filter.push(whole.substr(at, 1));
            ++at;
        }
        out += filter.finish();
        if (!filter.stopped())
            EXPECT_EQ(out, whole);
        else
            EXPECT_TRUE(whole.starts_with(out) && (whole.substr(out.size()).starts_with(stops[0]) ||
                                                   whole.substr(out.size()).starts_with(stops[1])))
                << whole;
        EXPECT_EQ(filter.stopped(), cut < whole.size());
    }
}

TEST(AnswerTextTest, TokensJoinToTheTextWhateverTheSplit) {
    const Tokenizer& tokenizer = *DemoModel::get().tokenizer;
    for (const char* words :
         {"It was a dark night.", "caf\xC3\xA9 \xE2\x98\x83 \xF0\x9F\x9A\xA2 ship",
          "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB"}) {
        AnswerText answer(&tokenizer, {"never"}, true);
        std::string whole, tokens;
        const auto take = [&](const AnswerText::Shown& shown) {
            whole += shown.text;
            for (const TokenText& token : shown.tokens) {
                const auto characters = std::count_if(tokens.begin(), tokens.end(),
                                                      [](char c) { return (c & 0xc0) != 0x80; });
                if (!token.text.empty()) {
                    EXPECT_EQ(token.offset_characters, static_cast<std::uint64_t>(characters))
                        << token.text;
                }
                tokens += token.text;
            }
        };
        for (const TokenId id : tokenizer.encode(words, SpecialTokens::parse))
            take(answer.push({.id = id}));
        take(answer.finish());
        EXPECT_EQ(whole, words);
        EXPECT_EQ(tokens, words);
    }
}

TEST(AnswerTextTest, ABrokenCharacterAtTheEndIsReplaced) {
    const Tokenizer& tokenizer = *DemoModel::get().tokenizer;
    auto ids = tokenizer.encode("\xF0\x9F\x91\xA9", SpecialTokens::parse);
    ASSERT_GT(ids.size(), 1u);

    ids.pop_back();
    AnswerText answer(&tokenizer, {}, true);
    std::string whole;
    for (const TokenId id : ids) whole += answer.push({.id = id}).text;
    EXPECT_EQ(whole, "");
    EXPECT_EQ(answer.finish().text, "\xEF\xBF\xBD");
}

TEST(AnswerTextTest, ATokenThatAStopCutsKeepsItsShownPart) {
    const Tokenizer& tokenizer = *DemoModel::get().tokenizer;
    AnswerText answer(&tokenizer, {"rk"}, true);
    std::string whole, tokens;
    for (const TokenId id : tokenizer.encode("It was dark night", SpecialTokens::parse)) {
        const auto shown = answer.push({.id = id});
        whole += shown.text;
        for (const TokenText& token : shown.tokens) tokens += token.text;
        if (answer.stopped()) break;
    }

    const auto rest = answer.finish();
    for (const TokenText& token : rest.tokens) tokens += token.text;
    EXPECT_EQ(whole + rest.text, "It was da");
    EXPECT_EQ(tokens, "It was da");
}

// A vocabulary of SentencePiece's kind has the space before a word in the word's token.
TEST(AnswerTextTest, ContinuationKeepsTheSpaceOfItsFirstWord) {
    const auto tokenizer = Tokenizer::load(
        R"({"model": {"type": "BPE", "vocab": {"\u2581a": 0, "b": 1}, "merges": []}, "decoder":
            {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"},
            "content": " "}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1}]}})",
        "");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    AnswerText answer(tokenizer->get(), {}, true);
    EXPECT_EQ(answer.push({.id = 0}).text, "a");
    EXPECT_EQ(answer.push({.id = 0}).text, " a");

    AnswerText continued(tokenizer->get(), {}, true, false, TextBegin::earlier);
    EXPECT_EQ(continued.push({.id = 0}).text, " a");
    EXPECT_EQ(continued.push({.id = 1}).text, "b");
}

TEST(AnswerTextTest, WithoutATokenizerTheTextIsTheIds) {
    AnswerText answer(nullptr, {}, false);
    EXPECT_EQ(answer.push({.id = 5}).text, "5");
    EXPECT_EQ(answer.push({.id = 17}).text, " 17");
}

}  // namespace
}  // namespace moex::test
