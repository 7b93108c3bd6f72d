// Tests of the bounds on an answer's tokens: min_tokens, ignore_eos, bad_words, suppress_tokens,
// and of the reading of schemas that a request chooses.
#include "tests/hub/api/api_fixture.h"

#include "hub/api/jobs/bounded_mask.h"

namespace moex::test {
namespace {

class AllowsOnly : public TokenMask {
  public:
    explicit AllowsOnly(std::uint64_t bits) : bits_{bits} {}
    std::span<const std::uint64_t> allowed(std::span<const TokenId>, std::uint32_t) override {
        return bits_;
    }

  private:
    std::vector<std::uint64_t> bits_;
};

TEST(BoundedMaskTest, AFormComesBeforeTheBounds) {
    TokenBounds bounds{.min_tokens = 2, .suppressed = {1}, .bad_words = {{3, 4}, {5}}};
    const std::vector<TokenId> begun{0, 3}, none{};
    BoundedMask free(bounds, {7}, {6}, 8, nullptr);
    EXPECT_EQ(free.allowed(none, 9)[0] & 0xff, 0b0001'1101u);
    EXPECT_EQ(free.allowed(begun, 9)[0] & 0xff, 0b1100'1101u);

    BoundedMask formed(bounds, {7}, {6}, 8, std::make_shared<AllowsOnly>(0b1000'0011));
    EXPECT_EQ(formed.allowed(none, 9)[0], 0b0000'0001u);
    BoundedMask ended(bounds, {7}, {6}, 8, std::make_shared<AllowsOnly>(0b1000'0010));
    EXPECT_EQ(ended.allowed(none, 9)[0], 0b1000'0010u);
}

class BoundsTest : public ApiTest {
  protected:
    Json text_of(Json extra) {
        Json body{{"prompt", "Once upon a time"}, {"max_tokens", 24}, {"temperature", 0}};
        body.update(extra);
        const auto answer = ask(text_path, body);
        EXPECT_EQ(answer->status(), 200u) << answer->response().body;
        return answer->json();
    }
    std::vector<TokenId> ids_of(const std::string& words) {
        return model_.tokenizer->encode(words, SpecialTokens::as_text);
    }
};

TEST_F(BoundsTest, UnwantedWordsAndTokensDoNotOccur) {
    const std::string free = text_of(Json::object())["choices"][0]["text"];
    const auto ids = ids_of(free);
    ASSERT_GT(ids.size(), 6u);
    const auto has = [&](const std::string& words, TokenId id) {
        const auto found = ids_of(words);
        return std::find(found.begin(), found.end(), id) != found.end();
    };
    EXPECT_FALSE(has(text_of({{"suppress_tokens", {ids[3]}}})["choices"][0]["text"], ids[3]));

    // A word of several tokens: its first tokens may occur without the last one.
    const std::string word = model_.tokenizer->decode(std::span(ids).subspan(2, 2), false);
    const std::string without = text_of({{"bad_words", {word}}})["choices"][0]["text"];
    EXPECT_EQ(without.find(word), std::string::npos) << without;
    EXPECT_NE(free.find(word), std::string::npos) << free;
}

TEST_F(BoundsTest, AnswersDoNotEndBeforeTheirLeastTokens) {
    const std::string free = text_of(Json::object())["choices"][0]["text"];
    const std::string stop = free.substr(3, 2);
    const Json early = text_of({{"stop", stop}});
    EXPECT_EQ(early["choices"][0]["text"], free.substr(0, free.find(stop)));
    const Json late = text_of({{"stop", stop}, {"min_tokens", 24}});
    EXPECT_EQ(late["choices"][0]["text"], free);
    EXPECT_EQ(late["usage"]["completion_tokens"], 24);

    // A token that ends the answer does not occur before the least tokens, either.
    const TokenId first = ids_of(free)[0];
    EXPECT_EQ(text_of({{"stop_token_ids", {first}}})["usage"]["completion_tokens"], 0);
    const Json bounded = text_of({{"stop_token_ids", {first}}, {"min_tokens", 5}});
    EXPECT_GE(bounded["usage"]["completion_tokens"], 5);
    EXPECT_EQ(text_of({{"ignore_eos", true}})["usage"]["completion_tokens"], 24);
}

TEST_F(BoundsTest, WrongBoundsAreRefusedByName) {
    const std::pair<Json, const char*> cases[] = {
        {{{"min_tokens", 25}}, "min_tokens"},
        {{{"min_tokens", -1}}, "min_tokens"},
        {{{"bad_words", "x"}}, "bad_words"},
        {{{"bad_words", {""}}}, "bad_words"},
        {{{"suppress_tokens", {-1}}}, "suppress_tokens"},
        {{{"suppress_tokens", {99999999}}}, "suppress_tokens"},
        {{{"ignore_eos", 3}}, "ignore_eos"},
    };
    for (const auto& [extra, param] : cases) {
        Json body{{"prompt", "Once"}, {"max_tokens", 24}};
        body.update(extra);
        const auto answer = ask(text_path, body);
        EXPECT_EQ(answer->status(), 400u) << extra;
        EXPECT_EQ(answer->json()["error"]["param"], param) << answer->response().body;
    }
}

TEST_F(BoundsTest, ARequestMayReadSchemasByTheStandard) {
    const Json schema{{"type", "object"}, {"properties", {{"a", {{"const", 1}}}}}};
    const auto begun = [&](bool opens) {
        Json body = chat("Go", {{"json_schema", schema}, {"moex", {{"open_objects", opens}}}});
        body["messages"].push_back({{"role", "assistant"}, {"content", "{\"other\": "}});
        return ask(chat_path, body)->status();
    };
    EXPECT_EQ(begun(true), 200u);
    EXPECT_EQ(begun(false), 400u);
    const auto wrong = ask(chat_path, chat("Go", {{"moex", {{"open_objects", 1}}}}));
    EXPECT_EQ(wrong->json()["error"]["param"], "moex.open_objects");
}

}  // namespace
}  // namespace moex::test
