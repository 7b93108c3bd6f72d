// The model that runs on "This device" (in the tab) reads the same fields of a request as the hub
// does.
#include "web-worker/local/local_question.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "hub/api/openai_request.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

using Body = nlohmann::ordered_json;

std::string file(const std::string& name) {
    std::ifstream in(repository().string() + "/static/models/demo/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

const GenerationDefaults defaults{.do_sample = true,
                                  .temperature = 0.8,
                                  .top_p = 0.95,
                                  .sample_top_k = 40,
                                  .min_p = 0.01,
                                  .repetition_penalty = 1.05,
                                  .presence_penalty = 0.75,
                                  .frequency_penalty = 0.25};

class LocalQuestionTest : public ::testing::Test {
  protected:
    LocalQuestionTest()
        : tokenizer(*Tokenizer::load(file("tokenizer.json"), file("tokenizer_config.json"))) {}

    Body body_with(const char* fields) const {
        Body body = Body::parse(R"({"messages": [{"role": "user", "content": "Hello"}]})");
        body.update(Body::parse(fields));
        return body;
    }
    Result<LocalQuestion> read(const char* fields) const {
        return read_question(body_with(fields), defaults, *tokenizer, vocab_size);
    }
    Checked<CompletionParams> read_by_hub(const char* fields) const {
        return read_chat_params(
            body_with(fields),
            {.vocab_size = vocab_size, .tokenizer = tokenizer.get(), .defaults = defaults});
    }

    std::shared_ptr<const Tokenizer> tokenizer;
    static constexpr std::uint32_t vocab_size = 8192;
};

TEST_F(LocalQuestionTest, ReadsWhatTheHubReads) {
    for (const char* fields :
         {R"({})", R"({"temperature": 0, "max_tokens": 7, "stop": ["a", "b"]})",
          R"({"temperature": 1.25, "top_p": 0.5, "top_k": 3, "min_p": 0.25})",
          R"({"seed": 9007199254740991})", R"({"top_k": -1, "seed": -5})",
          R"({"presence_penalty": -2, "frequency_penalty": 1.5, "repetition_penalty": 1.2})",
          R"({"logit_bias": {"5": 1.5, " sea": -3, "12 men": 2}})",
          R"({"logit_bias": [[5, 1.5], [" storm", false], ["7", 2], ["<|im_end|>", -100]]})",
          R"({"reasoning_effort": "low", "temperature": null})"}) {
        SCOPED_TRACE(fields);
        const auto hub = read_by_hub(fields);
        const auto mine = read(fields);
        ASSERT_TRUE(hub.ok());
        ASSERT_TRUE(mine.ok()) << mine.error().message;
        EXPECT_EQ(mine->messages, hub->messages);
        EXPECT_EQ(mine->max_tokens, hub->max_tokens);
        EXPECT_EQ(mine->stops, hub->stop);
        EXPECT_EQ(mine->reasoning_effort, hub->reasoning_effort);
        const SamplingOptions &a = mine->sampling, &b = hub->sampling;
        EXPECT_EQ(a.temperature, b.temperature);
        EXPECT_EQ(a.top_p, b.top_p);
        EXPECT_EQ(a.sample_top_k, b.sample_top_k);
        EXPECT_EQ(a.min_p, b.min_p);
        EXPECT_EQ(a.repetition_penalty, b.repetition_penalty);
        EXPECT_EQ(a.presence_penalty, b.presence_penalty);
        EXPECT_EQ(a.frequency_penalty, b.frequency_penalty);
        EXPECT_EQ(a.logit_bias, b.logit_bias);
        EXPECT_EQ(a.seed, b.seed);
    }
}

TEST_F(LocalQuestionTest, InvalidFieldIsRefusedByName) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"temperature": 3})", "temperature"},
        {R"({"temperature": "hot"})", "temperature"},
        {R"({"top_p": 1.5})", "top_p"},
        {R"({"top_k": 1.5})", "top_k"},
        {R"({"min_p": -1})", "min_p"},
        {R"({"seed": "one"})", "seed"},
        {R"({"max_tokens": 0})", "max_tokens"},
        {R"({"logit_bias": {"8192": 1}})", "logit_bias"},
        {R"({"logit_bias": {"1234567890": 1}})", "logit_bias"},
        {R"({"logit_bias": [[4294967301, 1]]})", "logit_bias"},
        {R"({"logit_bias": [[-1, 1]]})", "logit_bias"},
        {R"({"logit_bias": [[5]]})", "logit_bias"},
        {R"({"logit_bias": [[5, 101]]})", "logit_bias"},
        {R"({"logit_bias": [[5, true]]})", "logit_bias"},
        {R"({"logit_bias": [["", 1]]})", "logit_bias"},
        {R"({"logit_bias": 5})", "logit_bias"}};
    for (const auto& [fields, name] : cases) {
        SCOPED_TRACE(fields);
        EXPECT_FALSE(read_by_hub(fields).ok());
        const auto mine = read(fields);
        ASSERT_FALSE(mine.ok());
        EXPECT_NE(mine.error().message.find(name), std::string::npos) << mine.error().message;
    }
}

TEST_F(LocalQuestionTest, NumberOfDraftedTokensIsThatOfMoexSpeculative) {
    const auto drafts = [&](const char* fields) { return read(fields)->draft_tokens; };
    EXPECT_EQ(drafts(R"({})"), std::nullopt);
    EXPECT_EQ(drafts(R"({"moex": {}})"), std::nullopt);
    EXPECT_EQ(drafts(R"({"moex": {"speculative": "auto"}})"), std::nullopt);
    EXPECT_EQ(drafts(R"({"moex": {"speculative": "off"}})"), 0u);
    EXPECT_EQ(drafts(R"({"moex": {"speculative": 5}})"), 5u);
    for (const char* fields :
         {R"({"moex": {"speculative": 0}})", R"({"moex": {"speculative": 17}})",
          R"({"moex": {"speculative": "on"}})", R"({"moex": {"speculative": 1.5}})"}) {
        const auto mine = read(fields);
        ASSERT_FALSE(mine.ok()) << fields;
        EXPECT_NE(mine.error().message.find("moex.speculative"), std::string::npos);
    }
}

TEST_F(LocalQuestionTest, HubOnlyFieldIsRefusedAndNotIgnored) {
    for (const char* fields :
         {R"({"tools": []})", R"({"response_format": {"type": "json_object"}})",
          R"({"grammar": "root ::= \"a\""})", R"({"n": 2})", R"({"logprobs": true})"}) {
        const auto mine = read(fields);
        ASSERT_FALSE(mine.ok()) << fields;
        EXPECT_NE(mine.error().message.find("hub only"), std::string::npos);
    }
}

}  // namespace
}  // namespace moex
