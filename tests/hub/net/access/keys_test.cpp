// Tests of keys that an operator revokes, limits and counts while the hub runs.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/hub/net/hub_fixture.h"
#include "tests/hub/net/raw_client.h"

namespace moex::net {
namespace {

// A request field that forbids the end tokens: the answer ends only by its length.
const std::string endless = R"("logit_bias": {"8189": -100, "8191": -100})";

std::string post(const std::string& header_lines, const std::string& body) {
    return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + json_type + header_lines +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TokenUse use_of(TestHub& hub, const std::string& key_id) {
    TokenUse sum;
    for (const TokenUseOfDay& day : hub.registry().token_use())
        if (day.key_id == key_id) {
            sum.requests += day.requests;
            sum.prompt_tokens += day.prompt_tokens;
            sum.answer_tokens += day.answer_tokens;
        }
    return sum;
}

class KeysTest : public testing::Test {
  protected:
    static TestHubOptions keyed() {
        TestHubOptions options;
        options.server.require_keys = true;
        return options;
    }
};

TEST_F(KeysTest, ARevokedKeysStreamEndsWithAnError) {
    TestHub hub(keyed());
    const MadeKey ended = hub.registry().make_key({.name = "ended"}).value(),
                  other = hub.registry().make_key({.name = "other"}).value();
    const std::string body = R"({"prompt": "Once", "max_tokens": 900, "stream": true, )" + endless +
                             "}";
    RawClient stream(hub.port()), kept(hub.port());
    stream.send(post(bearer(ended.key), body));
    kept.send(post(bearer(other.key), body));
    ASSERT_NE(stream.read_until("data: ").find("200 OK"), std::string::npos);
    ASSERT_NE(kept.read_until("data: ").find("200 OK"), std::string::npos);

    // Revoke the key as `moex-hub key revoke` does: through a second Registry over the same file.
    auto beside = Registry::open(hub.state_folder()).value();
    ASSERT_TRUE(beside->revoke_key("ended").ok());

    const std::string rest = stream.read_until("0\r\n\r\n", 60s);
    EXPECT_NE(rest.find("data: {\"error\""), std::string::npos) << rest.substr(0, 2000);
    EXPECT_NE(rest.find("was revoked"), std::string::npos);
    EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
    EXPECT_EQ(fetch(hub.port(), "POST", "/tokenize", json_type + bearer(ended.key), "{}").status,
              401u);
    EXPECT_NE(kept.read_until("[DONE]", 60s).find("[DONE]"), std::string::npos);
}

TEST_F(KeysTest, AKeyMadeBesideOpensAndOneThatExpiresCloses) {
    TestHub hub(keyed());
    auto beside = Registry::open(hub.state_folder()).value();
    const std::string key = beside->make_key({.name = "late"}).value().key;
    const auto status_of = [&](const std::string& one) {
        return fetch(hub.port(), "POST", "/tokenize", json_type + bearer(one), R"({"content": ""})")
            .status;
    };
    EXPECT_TRUE(eventually([&] { return status_of(key) == 200; }));

    const std::string brief =
        beside->make_key({.name = "brief", .expires_s = std::time(nullptr) + 2}).value().key;
    EXPECT_TRUE(eventually([&] { return status_of(brief) == 401; }));
    EXPECT_EQ(status_of(key), 200u);
}

TEST_F(KeysTest, TokensThatClientsGotCountForTheirKey) {
    TestHub hub;
    const MadeKey made = hub.registry().make_key({.name = "app"}).value();
    const std::string body = R"({"prompt": "Once upon", "max_tokens": 7, )" + endless;
    const auto whole = nlohmann::json::parse(
        fetch(hub.port(), "POST", "/v1/completions", json_type + bearer(made.key), body + "}")
            .body);
    RawClient stream(hub.port());
    stream.send(post(bearer("none"), body + R"(, "stream": true, "n": 2})"));
    ASSERT_NE(stream.read_until("[DONE]", 60s).find("[DONE]"), std::string::npos);

    const std::uint64_t prompt_tokens = whole["usage"]["prompt_tokens"];
    ASSERT_TRUE(eventually([&] { return use_of(hub, local_key_id).answer_tokens == 14; }));
    EXPECT_EQ(use_of(hub, local_key_id).requests, 1u);
    EXPECT_EQ(use_of(hub, local_key_id).prompt_tokens, prompt_tokens);
    ASSERT_TRUE(eventually([&] { return use_of(hub, made.info.id).answer_tokens == 7; }));
    EXPECT_EQ(use_of(hub, made.info.id).requests, 1u);
    EXPECT_EQ(use_of(hub, made.info.id).prompt_tokens, prompt_tokens);
}

// A client that disconnects before a whole (not streamed) answer is complete was sent no part of
// the answer.
TEST_F(KeysTest, OnlyWhatHasLeftIsCounted) {
    TestHub hub;
    const std::string body = R"({"prompt": "Once", "max_tokens": 900, )" + endless + "}";
    {
        RawClient gone(hub.port());
        gone.send(post("", body));
        ASSERT_TRUE(eventually([&] {
            return nlohmann::json::parse(
                       fetch(hub.port(), "GET", "/api/status").body)["engine"]["generated_tokens"] >
                   2;
        }));
    }
    fetch(hub.port(), "POST", "/v1/completions", json_type,
          R"({"prompt": "Once", "max_tokens": 3, )" + endless + "}");
    ASSERT_TRUE(eventually([&] { return use_of(hub, local_key_id).requests == 1; }));
    EXPECT_EQ(use_of(hub, local_key_id).answer_tokens, 3u);
}

TEST_F(KeysTest, ALimitRefusesWithTheTimeToWaitAndGivesBackWhatWasNotUsed) {
    TestHub hub(keyed());
    const std::string key =
        hub.registry().make_key({.name = "app", .tokens_per_minute = 600}).value().key;
    const auto ask = [&](int max_tokens, const std::string& more) {
        return fetch(
            hub.port(), "POST", "/v1/completions", json_type + bearer(key),
            R"({"prompt": "Once", "max_tokens": )" + std::to_string(max_tokens) + more + "}");
    };

    // The first request reserves all tokens of a minute, and uses only a few tokens.
    EXPECT_EQ(ask(900, R"(, "stop": ["e", "a", " "])").status, 200u);
    ASSERT_TRUE(eventually([&] { return ask(300, R"(, "stop": ["e", "a", " "])").status == 200; }));

    const std::string body = R"({"prompt": "Once", "max_tokens": 500, "stream": true, )" + endless +
                             "}";
    RawClient running(hub.port());
    ASSERT_TRUE(eventually([&] {
        running.send(post(bearer(key), body));
        return running.read_until("data: ").find(" 200 OK") != std::string::npos;
    }));
    const RawResponse refused = ask(500, "");
    EXPECT_EQ(refused.status, 429u);
    EXPECT_EQ(nlohmann::json::parse(refused.body)["error"]["code"], "token_limit");
    EXPECT_NE(refused.body.find("600 tokens a minute"), std::string::npos);
    EXPECT_GE(std::stoi(refused.headers.at("retry-after")), 10);
}

}  // namespace
}  // namespace moex::net
