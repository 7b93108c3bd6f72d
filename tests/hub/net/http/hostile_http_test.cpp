// Tests of hostile HTTP requests over a real socket. Each request gets the expected status within 3
// s, its connection is closed, and the hub continues to serve.
#include <sys/resource.h>

#include <vector>

#include <gtest/gtest.h>

#include "tests/hub/net/http/hostile_requests.h"
#include "tests/hub/net/hub_fixture.h"
#include "tests/hub/net/raw_client.h"
#include "tests/support/process_memory.h"

namespace moex::net {
namespace {

using namespace std::chrono_literals;

TEST(HostileHttpTest, EveryRowOfTheTableIsRefusedAndTheHubServesOn) {
    TestHub hub;

    for (const HostileRequest& row : hostile_requests()) {
        SCOPED_TRACE(row.name);
        RawClient client(hub.port());
        client.send(row.bytes);
        const RawResponse response = client.read_response(false, 3s);
        EXPECT_EQ(response.status, row.status);
        EXPECT_NE(response.body.find("\"error\""), std::string::npos);
        EXPECT_EQ(response.headers.contains("connection") ? response.headers.at("connection") : "",
                  "close");
        EXPECT_TRUE(client.wait_closed(5s));
    }

    EXPECT_TRUE(hub.healthy());
}

TEST(HostileHttpTest, SlowClientsAreSentAway) {
    TestHubOptions options;
    options.server.clients.header_within = 200ms;
    options.server.clients.body_within = 200ms;
    options.server.clients.idle_within = 200ms;
    TestHub hub(options);

    RawClient silent(hub.port()), half_head(hub.port()), half_body(hub.port()), idle(hub.port());
    half_head.send("GET / HTTP/1.1\r\nHost: loc");
    half_body.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nContent-Length: 100\r\n\r\n{");
    idle.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");

    EXPECT_EQ(idle.read_response().status, 200u);
    EXPECT_EQ(half_head.read_response().status, 408u);
    EXPECT_EQ(half_body.read_response().status, 408u);
    EXPECT_TRUE(silent.wait_closed());
    EXPECT_TRUE(idle.wait_closed());
    EXPECT_TRUE(hub.healthy());
}

TEST(HostileHttpTest, PipelinedRequestsAreAnsweredInOrder) {
    TestHub hub;
    RawClient client(hub.port());
    client.send(
        "GET /api/info HTTP/1.1\r\nHost: localhost\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: "
        "localhost\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(client.read_response().status, 200u);
    EXPECT_EQ(client.read_response().status, 404u);
    EXPECT_EQ(client.read_response().status, 200u);
}

TEST(HostileHttpTest, AClientThatWaitsForContinueIsAskedForItsBody) {
    TestHub hub;
    RawClient client(hub.port());
    client.send(
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: "
        "100-continue\r\nContent-Length: 17\r\n\r\n");
    EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("{\"content\": \"hi\"}");
    EXPECT_EQ(client.read_response().status, 200u);
}

TEST(HostileHttpTest, ConnectionsAreBounded) {
    TestHubOptions options;
    options.server.connections_max = 3;
    TestHub hub(options);
    {
        RawClient first(hub.port()), second(hub.port()), third(hub.port());
        for (RawClient* client : {&first, &second, &third}) {
            client->send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
            EXPECT_EQ(client->read_response().status, 200u);
        }
        RawClient fourth(hub.port());
        EXPECT_TRUE(fourth.wait_closed());
    }
}

TEST(HostileHttpTest, OneAddressHoldsOnlySoManyConnections) {
    TestHubOptions options;
    options.server.connections_per_address_max = 2;
    options.server.rates.loopback_factor = 1;
    TestHub hub(options);
    {
        RawClient first(hub.port()), second(hub.port());
        RawClient third(hub.port());
        EXPECT_TRUE(third.wait_closed());
        first.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
        EXPECT_EQ(first.read_response().status, 200u);
    }
    // The closed connections' places are free again.
    EXPECT_TRUE(eventually([&] { return hub.healthy(); }));
}

std::string post_head(std::size_t length, const std::string& lines = {}) {
    return "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
           lines + "Content-Length: " + std::to_string(length) + "\r\n\r\n";
}

// The client never sends a body: the hub answers each request from its head alone.
TEST(HostileHttpTest, ClientWithoutAccessIsRefusedBeforeTheBody) {
    TestHubOptions options;
    options.server.require_keys = true;
    TestHub hub(options);
    const std::string key = "Authorization: Bearer " +
                            hub.registry().create_key(Role::api, "app").value() + "\r\n";

    const auto answer_to = [&](const std::string& head) {
        RawClient client(hub.port());
        client.send(head);
        const RawResponse response = client.read_response(false, 3s);
        EXPECT_EQ(response.headers.contains("connection") ? response.headers.at("connection") : "",
                  "close");
        EXPECT_TRUE(client.wait_closed());
        return response.status;
    };

    EXPECT_EQ(answer_to(post_head(1'000'000)), 401u);
    EXPECT_EQ(answer_to(post_head(1'000'000, key + "Origin: https://evil.example\r\n")), 403u);
    EXPECT_EQ(
        answer_to("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"),
        404u);
    EXPECT_EQ(
        answer_to("POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"),
        405u);
    EXPECT_EQ(answer_to("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + key +
                        "Content-Length: 1000000\r\n\r\n"),
              415u);
    EXPECT_EQ(answer_to("POST /tokenize HTTP/1.1\r\nHost: evil.example\r\n" + key +
                        "Transfer-Encoding: chunked\r\n\r\n"),
              403u);
    EXPECT_EQ(answer_to(post_head(17, "Expect: 100-continue\r\n")), 401u);
}

TEST(HostileHttpTest, ASmallRefusedBodyKeepsTheConnection) {
    TestHubOptions options;
    options.server.require_keys = true;
    TestHub hub(options);
    RawClient client(hub.port());
    client.send(post_head(17) +
                "{\"content\": \"hi\"}GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                "2\r\n\r\n{}GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(client.read_response().status, 401u);
    EXPECT_EQ(client.read_response().status,
              200u);  // the hub reads and drops a body that the route does not need
    EXPECT_EQ(client.read_response().status, 200u);
}

TEST(HostileHttpTest, BodiesInMemoryAreBoundedOverAllConnections) {
    TestHubOptions options;
    options.server.body_bytes_in_flight_max = 100'000;
    TestHub hub(options);
    const std::string half(60'000, ' ');
    std::unique_ptr<RawClient> first;
    const auto send_half = [&] {
        first = std::make_unique<RawClient>(hub.port());
        first->send(post_head(120'000, "Expect: 100-continue\r\n"));
        EXPECT_EQ(first->read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
        first->send(half);
    };
    const auto ask = [&] {
        return fetch(hub.port(), "POST", "/tokenize", "Content-Type: application/json\r\n",
                     "{\"content\": \"hi\"" + half + "}");
    };

    // The request with the last bytes to arrive is refused. If that is the first connection's
    // request, the first connection sends it again.
    RawResponse response;
    ASSERT_TRUE(eventually([&] {
        first.reset();
        send_half();
        constexpr int asks = 20;
        for (int i = 0; i < asks; ++i) {
            response = ask();
            if (response.status != 200) return true;
        }
        return false;
    }));
    EXPECT_EQ(response.status, 503u);
    EXPECT_TRUE(response.headers.contains("retry-after"));
    EXPECT_TRUE(hub.healthy());
    first.reset();
    // A connection that ends releases the body bytes that it occupied.
    ASSERT_TRUE(eventually([&] { return ask().status == 200; }));
    // Each answered request releases its body bytes, too.
    for (int i = 0; i < 5; ++i) EXPECT_EQ(ask().status, 200u);
}

// Behind a trusted proxy each client has separate limits, and none of the rights of a client on
// this machine. A peer that is no trusted proxy cannot name another address.
TEST(HostileHttpTest, LimitsHoldForTheClientBehindATrustedProxy) {
    TestHubOptions options;
    options.server.trusted_proxies = {"127.0.0.1"};
    options.server.rates = {.api_requests_per_minute = 1, .api_requests_burst = 1};
    TestHub hub(options);
    const std::string json = "Content-Type: application/json\r\n", body = R"({"content": "a"})";
    EXPECT_EQ(fetch(hub.port(), "POST", "/tokenize", json, body).status, 401u);

    const std::string key = json + "Authorization: Bearer " +
                            hub.registry().create_key(Role::api, "app").value() + "\r\n";
    const auto ask = [&](const std::string& lines) {
        return fetch(hub.port(), "POST", "/tokenize", key + lines, body).status;
    };
    EXPECT_EQ(ask("X-Forwarded-For: 198.51.100.7\r\n"), 200u);
    EXPECT_EQ(ask("X-Forwarded-For: 127.0.0.1, 198.51.100.7\r\n"), 429u);
    EXPECT_EQ(ask("X-Forwarded-For: 198.51.100.8\r\n"), 200u);

    const RawResponse page = fetch(hub.port(), "GET", "/",
                                   "X-Forwarded-For: 198.51.100.7\r\nX-Forwarded-Proto: https\r\n");
    EXPECT_TRUE(page.headers.contains("strict-transport-security"));
    EXPECT_FALSE(fetch(hub.port(), "GET", "/").headers.contains("strict-transport-security"));
}

TEST(HostileHttpTest, WithoutATrustedProxyForwardedAddressesAreWords) {
    TestHubOptions options;
    options.server.rates = {
        .api_requests_per_minute = 1, .api_requests_burst = 1, .loopback_factor = 1};
    TestHub hub(options);
    const std::string json = "Content-Type: application/json\r\n", body = R"({"content": "a"})";
    EXPECT_EQ(
        fetch(hub.port(), "POST", "/tokenize", json + "X-Forwarded-For: 198.51.100.7\r\n", body)
            .status,
        200u);
    EXPECT_EQ(
        fetch(hub.port(), "POST", "/tokenize", json + "X-Forwarded-For: 198.51.100.8\r\n", body)
            .status,
        429u);
    EXPECT_FALSE(fetch(hub.port(), "GET", "/", "X-Forwarded-Proto: https\r\n")
                     .headers.contains("strict-transport-security"));
}

TEST(HostileHttpTest, AKeyIsRateLimitedFromAllAddressesTogether) {
    TestHubOptions options;
    options.server.trusted_proxies = {"127.0.0.1"};
    options.server.rates = {.key_requests_per_minute = 1, .key_requests_burst = 2};
    TestHub hub(options);

    const auto ask = [&](const std::string& key, const char* address) {
        return fetch(hub.port(), "POST", "/tokenize",
                     "Content-Type: application/json\r\nAuthorization: Bearer " + key +
                         "\r\nX-Forwarded-For: " + address + "\r\n",
                     R"({"content": "a"})")
            .status;
    };

    const std::string first = hub.registry().create_key(Role::api, "one").value(),
                      second = hub.registry().create_key(Role::api, "two").value();
    EXPECT_EQ(ask(first, "198.51.100.1"), 200u);
    EXPECT_EQ(ask(first, "198.51.100.2"), 200u);
    EXPECT_EQ(ask(first, "198.51.100.3"), 429u);
    EXPECT_EQ(ask(second, "198.51.100.3"), 200u);
}

TEST(HostileHttpTest, GuessingKeysIsRateLimited) {
    TestHubOptions options;
    options.server.trusted_proxies = {"127.0.0.1"};
    options.server.rates = {.api_requests_per_minute = 1, .api_requests_burst = 3};
    TestHub hub(options);

    const auto guess = [&](const char* address) {
        return fetch(hub.port(), "POST", "/tokenize",
                     std::string("Content-Type: application/json\r\nAuthorization: Bearer "
                                 "wrong\r\nX-Forwarded-For: ") +
                         address + "\r\n",
                     R"({"content": "a"})");
    };

    for (int i = 0; i < 3; ++i) EXPECT_EQ(guess("198.51.100.1").status, 401u);
    const RawResponse refused = guess("198.51.100.1");
    EXPECT_EQ(refused.status, 429u);
    EXPECT_TRUE(refused.headers.contains("retry-after"));
    EXPECT_EQ(guess("198.51.100.2").status, 401u);
}

// A thousand clients send heads slowly and without end: a normal
// request is answered beside them, and they cost little.
TEST(HostileHttpTest, AThousandSlowHeadsHoldNobodyUp) {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 8192);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);

    if (files.rlim_cur < 2500)
        GTEST_SKIP() << "the system allows " << files.rlim_cur << " open files";
    TestHubOptions options;
    options.server.clients.header_within = 30s;
    TestHub hub(options);
    const std::uint64_t before = process_bytes("VmRSS");
    std::vector<std::unique_ptr<RawClient>> slow;

    for (int i = 0; i < 1000; ++i) {
        slow.push_back(std::make_unique<RawClient>(hub.port()));
        ASSERT_TRUE(
            slow.back()->send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: "));
    }

    for (int drip = 0; drip < 3; ++drip) {
        for (auto& client : slow) ASSERT_TRUE(client->send("a"));
        EXPECT_TRUE(hub.healthy());
        EXPECT_EQ(fetch(hub.port(), "POST", "/v1/completions", "Content-Type: application/json\r\n",
                        R"({"prompt": "Once", "max_tokens": 2})")
                      .status,
                  200u);
    }

#ifndef __SANITIZE_THREAD__  // whose shadow of each byte is four
    EXPECT_LT(process_bytes("VmRSS"), before + (100u << 20));
#endif

    // Each of the slow requests is served once it is complete.
    for (std::size_t i = 0; i < slow.size(); i += 100) {
        const std::string body = R"({"prompt": "Once", "max_tokens": 1})";
        slow[i]->send("\r\nContent-Type: application/json\r\nContent-Length: " +
                      std::to_string(body.size()) + "\r\n\r\n" + body);
        EXPECT_EQ(slow[i]->read_response(false, 60s).status, 200u);
    }
}

TEST(HostileHttpTest, ApiRequestsAreRateLimited) {
    TestHubOptions options;
    options.server.rates = {
        .api_requests_per_minute = 1, .api_requests_burst = 2, .loopback_factor = 1};
    TestHub hub(options);
    const std::string json = "Content-Type: application/json\r\n";
    EXPECT_EQ(fetch(hub.port(), "POST", "/tokenize", json, "{\"content\": \"a\"}").status, 200u);
    EXPECT_EQ(fetch(hub.port(), "POST", "/tokenize", json, "{\"content\": \"a\"}").status, 200u);
    const RawResponse refused = fetch(hub.port(), "POST", "/tokenize", json,
                                      "{\"content\": \"a\"}");
    EXPECT_EQ(refused.status, 429u);
    EXPECT_TRUE(refused.headers.contains("retry-after"));
    EXPECT_TRUE(hub.healthy());
}

TEST(HostileHttpTest, TextIsRateLimitedByItsBytes) {
    TestHubOptions options;
    options.server.rates = {
        .text_bytes_per_minute = 60, .text_bytes_burst = 3000, .loopback_factor = 1};
    TestHub hub(options);
    const std::string json = "Content-Type: application/json\r\n";
    const std::string body = "{\"content\": \"" + std::string(2000, 'a') + "\"}";
    EXPECT_EQ(fetch(hub.port(), "POST", "/tokenize", json, body).status, 200u);
    const RawResponse refused = fetch(hub.port(), "POST", "/tokenize", json, body);
    EXPECT_EQ(refused.status, 429u);
    EXPECT_NE(refused.body.find("too many bytes"), std::string::npos) << refused.body;
    EXPECT_TRUE(refused.headers.contains("retry-after"));
    EXPECT_EQ(fetch(hub.port(), "POST", "/tokenize", json, "{\"content\": \"a\"}").status, 200u);
    EXPECT_TRUE(hub.healthy());
}

}  // namespace
}  // namespace moex::net
