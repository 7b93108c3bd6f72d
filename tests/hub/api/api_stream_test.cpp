// Tests of streams: the order of events, their text, and a disconnect of the client or the hub.
#include "tests/hub/api/api_fixture.h"

#include <thread>

namespace moex::test {
namespace {

TEST_F(ApiTest, AStreamComesInTheOrderThatClientsExpect) {
    const auto answer = ask(
        chat_path,
        chat("Tell me a story", {{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
    ASSERT_TRUE(answer->streamed());

    const auto chunks = answer->chunks();
    ASSERT_GE(chunks.size(), 4u);
    EXPECT_EQ(answer->events().back(), "[DONE]");
    EXPECT_EQ(chunks[0]["choices"][0]["delta"],
              (Json{{"role", "assistant"}, {"content", nullptr}}));

    const std::string id = chunks[0]["id"];
    EXPECT_TRUE(id.starts_with("chatcmpl-"));

    for (std::size_t i = 0; i < chunks.size(); ++i) {
        EXPECT_EQ(chunks[i]["id"], id);
        EXPECT_EQ(chunks[i]["object"], "chat.completion.chunk");
        if (i > 0 && !chunks[i]["choices"].empty()) {
            EXPECT_FALSE(chunks[i]["choices"][0]["delta"].contains("role"));
        }
    }

    const Json& last_choice = chunks[chunks.size() - 2];
    EXPECT_EQ(last_choice["choices"][0]["delta"], Json::object());
    EXPECT_EQ(last_choice["choices"][0]["finish_reason"], "length");

    const Json& usage = chunks.back();
    EXPECT_TRUE(usage["choices"].empty());
    EXPECT_EQ(usage["usage"]["completion_tokens"], 12);
    EXPECT_TRUE(usage.contains("timings"));
    EXPECT_TRUE(usage.contains("moex"));
}

TEST_F(ApiTest, AStreamsTextEqualsTheWholeAnswers) {
    for (const Json& extra : {Json::object(), Json{{"stop", {"the", "and a"}}},
                              Json{{"temperature", 1.0}, {"seed", 5}, {"n", 2}},
                              Json{{"logprobs", true}, {"top_logprobs", 2}}}) {
        SCOPED_TRACE(extra.dump());
        Json request = chat("Tell me a story about the sea", {{"max_tokens", 40}});
        request.update(extra);
        const Json whole = ask(chat_path, request)->json();
        request["stream"] = true;
        const auto chunks = ask(chat_path, request)->chunks();
        std::vector<std::string> texts(whole["choices"].size()), reasons(texts.size()),
            tokens(texts.size());
        for (const Json& chunk : chunks) {
            for (const Json& choice : chunk["choices"]) {
                const std::size_t index = choice["index"];
                const Json& content = choice["delta"].contains("content")
                                          ? choice["delta"]["content"]
                                          : Json();
                if (content.is_string()) texts[index] += content.get<std::string>();
                if (choice["finish_reason"].is_string()) reasons[index] = choice["finish_reason"];
                if (choice["logprobs"].is_object())
                    for (const Json& token : choice["logprobs"]["content"])
                        tokens[index] += token["token"].get<std::string>();
            }
        }
        for (std::size_t i = 0; i < texts.size(); ++i) {
            EXPECT_EQ(texts[i], whole["choices"][i]["message"]["content"]);
            EXPECT_EQ(reasons[i], whole["choices"][i]["finish_reason"]);
            if (extra.contains("logprobs")) {
                EXPECT_EQ(tokens[i], texts[i]);
            }
        }
        const Json& last = chunks.back();
        EXPECT_TRUE(last.contains("timings") && last.contains("moex")) << last.dump();
    }
}

TEST_F(ApiTest, NoChunkSplitsACharacter) {
    // Force characters that consist of several tokens: bias the model towards the tokens of a
    // snowman character.
    const auto ids = model_.tokenizer->encode("\xE2\x98\x83", SpecialTokens::parse);
    Json bias = Json::object();
    for (const TokenId id : ids) bias[std::to_string(id)] = 100;
    Json request{{"prompt", "Snow"},
                 {"max_tokens", 24},
                 {"temperature", 1.0},
                 {"seed", 1},
                 {"logit_bias", bias}};
    const std::string whole = ask(text_path, request)->json()["choices"][0]["text"];
    request["stream"] = true;
    std::string joined;

    // A UTF-8 sequence that is split between two chunks would have become U+FFFD.
    for (const Json& chunk : ask(text_path, request)->chunks())
        if (!chunk["choices"].empty()) joined += chunk["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(joined, whole);
}

TEST_F(ApiTest, AClientThatLeavesFreesItsSequence) {
    const auto answer = start(
        chat_path, chat("Tell me a story", {{"stream", true},
                                            {"max_tokens", 900},
                                            {"logit_bias", {{"8191", -100}, {"8189", -100}}}})
                       .dump());
    answer->wait_for_events(3);
    answer->disconnect();
    while (!engine_->idle() || engine_->counters().running > 0) std::this_thread::yield();

    EXPECT_EQ(engine_->counters().kv_pages_used, 0u);
    EXPECT_NE(answer->events().back(), "[DONE]");
}

TEST_F(ApiTest, AClientThatLeavesWhileItWaitsLeavesTheQueue) {
    make({.sequences_max = 1}, {});
    experts_.hold();
    const auto running = start(text_path, R"({"prompt":"One","max_tokens":2})");
    while (engine_->counters().running == 0) std::this_thread::yield();
    const auto waiting = start(text_path, R"({"prompt":"Two","max_tokens":2,"stream":true})");
    while (engine_->counters().waiting == 0) std::this_thread::yield();
    waiting->disconnect();
    while (engine_->counters().waiting > 0) std::this_thread::yield();

    experts_.release();
    EXPECT_EQ(running->wait().status(), 200u);
}

TEST_F(ApiTest, ExpertsThatGoAwayInMidStreamEndItWithAnError) {
    const auto answer = start(
        chat_path, chat("Tell me a story", {{"stream", true},
                                            {"max_tokens", 900},
                                            {"logit_bias", {{"8191", -100}, {"8189", -100}}}})
                       .dump());
    answer->wait_for_events(3);
    experts_.fail();
    answer->wait();
    const Json last = Json::parse(answer->events().back());

    EXPECT_EQ(last["error"]["type"], "unavailable_error");
}

TEST_F(ApiTest, AnEngineThatStopsEndsEveryAnswer) {
    experts_.hold();
    const auto streamed = start(chat_path, chat("Tell me a story", {{"stream", true}}).dump());
    const auto whole = start(chat_path, chat("Tell me a story").dump());

    // Wait until the engine has both requests, before another thread destroys the engine.
    while (engine_->counters().running + engine_->counters().waiting < 2) std::this_thread::yield();
    std::thread stopper([&] { engine_.reset(); });
    experts_.release();
    streamed->wait();
    whole->wait();
    stopper.join();
}

TEST_F(ApiTest, ManyRequestsAtOnceEqualTheirSoloRuns) {
    std::vector<Json> requests;
    for (int i = 0; i < 4; ++i)
        requests.push_back({{"prompt", "Chapter " + std::to_string(i) + ". The"},
                            {"max_tokens", 12},
                            {"temperature", 0.9},
                            {"seed", 100 + i}});
    std::vector<std::shared_ptr<CapturedAnswer>> together;
    for (const Json& request : requests) together.push_back(start(text_path, request.dump()));
    for (std::size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(together[i]->wait().json()["choices"],
                  ask(text_path, requests[i])->json()["choices"])
            << "request " << i;

    EXPECT_GT(engine_->counters().steps_multi_sequence, 0u);
}

}  // namespace
}  // namespace moex::test
