// Tests of stopping the hub: running answers end whole, workers get DRAIN, and run() returns. A
// client that disconnects frees its slot.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "protocol/messages.h"
#include "tests/hub/net/hub_fixture.h"
#include "tests/hub/net/raw_client.h"

namespace moex::net {
namespace {

using namespace std::chrono_literals;

std::string stream_request(int max_tokens) {
    const std::string body =
        nlohmann::json{{"model", "moex-demo"},     {"prompt", "Once upon a time"},
                       {"max_tokens", max_tokens}, {"stream", true},
                       {"temperature", 0},         {"logit_bias", {{"8189", -100}, {"8191", -100}}}}
            .dump();
    return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
           "application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
}
int running(std::uint16_t port) {
    return nlohmann::json::parse(fetch(port, "GET", "/api/status").body)["engine"]["running"];
}

TEST(DrainTest, AStreamEndsWholeAndNewWorkIsRefused) {
    TestHub hub;
    RawClient stream(hub.port());
    stream.send(stream_request(40));
    ASSERT_NE(stream.read_until("data: ").find("text/event-stream"), std::string::npos);

    hub.server().stop();

    // stop() only posts the stop: wait until /health reports it, or until the stream has ended.
    RawResponse health;
    ASSERT_TRUE(eventually([&] {
        health = fetch(hub.port(), "GET", "/health");
        return health.status != 200;
    }));
    EXPECT_TRUE(health.status == 503 || health.status == 0);

    const std::string rest = stream.read_until("0\r\n\r\n", 60s);
    EXPECT_NE(rest.find("data: [DONE]"), std::string::npos);
    EXPECT_NE(rest.find("0\r\n\r\n"), std::string::npos);

    hub.wait_stopped();
}

// No worker computes the experts yet. The client's proxies get pings, and the failure is the last
// event of the stream.
TEST(DrainTest, AStreamThatWaitsForItsFirstTokenPings) {
    TestHubOptions options;
    options.server.clients.ping_every = 20ms;
    options.swarm.local_fallback = false;
    options.swarm.round_deadline = 1s;
    TestHub hub(options);
    RawClient stream(hub.port());
    stream.send(stream_request(4));
    const std::string begin = stream.read_until(": ping");
    EXPECT_NE(begin.find("HTTP/1.1 200 OK"), std::string::npos) << begin;
    EXPECT_NE(begin.find("text/event-stream"), std::string::npos) << begin;
    EXPECT_EQ(begin.find("data: "), std::string::npos) << begin;

    const std::string rest = stream.read_until("0\r\n\r\n", 60s);
    EXPECT_NE(rest.find("data: {\"error\""), std::string::npos) << rest;
    EXPECT_EQ(rest.find("[DONE]"), std::string::npos) << rest;

    stream.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(stream.read_response().status, 503u);  // the connection serves further requests
}

TEST(DrainTest, WorkersAreToldAndClosedWith1001) {
    TestHub hub;
    RawClient worker(hub.port());
    ASSERT_TRUE(worker.upgrade(hub.port(), hub.bearer()));

    Hello hello;
    hello.token = hub.token();
    hello.device.backend = "vulkan";
    hello.device.budget_bytes = 1 << 20;
    hello.worker_key = "test";
    worker.send_frame(2, as_text_view(encode_hello(hello)));
    ASSERT_EQ(worker.read_frame().opcode, 2);

    hub.server().stop();
    bool told = false;
    RawFrame frame;
    do {
        frame = worker.read_frame();
        if (frame.opcode == 2 && frame.payload.size() >= 8 &&
            frame.payload[6] == static_cast<char>(FrameType::drain))
            told = true;
    } while (frame.opcode == 2);
    EXPECT_TRUE(told);
    EXPECT_EQ(frame.opcode, 8);
    EXPECT_EQ(frame.close_code(), 1001);

    worker.close();
    hub.wait_stopped();
}

TEST(DrainTest, AHangUpFreesTheSlot) {
    TestHub hub;
    {
        RawClient stream(hub.port());
        stream.send(stream_request(400));
        ASSERT_NE(stream.read_until("data: ").find("text/event-stream"), std::string::npos);
        EXPECT_EQ(running(hub.port()), 1);
    }

    ASSERT_TRUE(eventually([&] { return running(hub.port()) == 0; }));

    const auto aborted = [&] {
        return fetch(hub.port(), "GET", "/metrics")
                   .body.find("moex_request_success_total{finished_reason=\"abort\"} 1") !=
               std::string::npos;
    };

    // An answer counts as aborted once its last event was handled.
    EXPECT_TRUE(eventually(aborted));
    EXPECT_TRUE(hub.healthy());
}

// Requests that still run at the deadline of the stop are ended: a stream with its last event, and
// a whole answer with its status.
TEST(DrainTest, TheDeadlineEndsWhatRunsWithAnError) {
    TestHubOptions options;
    options.server.drain_within = 0s;
    TestHub hub(options);
    RawClient stream(hub.port()), whole(hub.port()), idle(hub.port());
    stream.send(stream_request(2000));
    ASSERT_NE(stream.read_until("data: ").find("text/event-stream"), std::string::npos);

    const std::string body =
        R"({"prompt": "Once", "max_tokens": 2000, "logit_bias": {"8189": -100, "8191": -100}})";
    whole.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body);
    ASSERT_TRUE(eventually([&] { return running(hub.port()) == 2; }));

    hub.server().stop();
    const std::string rest = stream.read_until("0\r\n\r\n", 60s);
    const std::size_t last = rest.rfind("data: ");
    ASSERT_NE(last, std::string::npos) << rest;

    const auto event = nlohmann::json::parse(
        rest.substr(last + 6, rest.find("\n\n", last) - last - 6), nullptr, false);
    ASSERT_TRUE(event.is_object() && event.contains("error")) << rest;
    EXPECT_EQ(event["error"]["code"], "shutting_down");
    EXPECT_EQ(event["error"]["type"], "unavailable_error");

    const RawResponse refused = whole.read_response();
    EXPECT_EQ(refused.status, 503u);
    EXPECT_TRUE(refused.headers.contains("retry-after"));
    EXPECT_TRUE(idle.wait_closed());

    stream.close();
    whole.close();
    hub.wait_stopped();
}

TEST(DrainTest, ASecondStopDoesNotWait) {
    TestHub hub;
    RawClient stream(hub.port());
    stream.send(stream_request(400));
    ASSERT_NE(stream.read_until("data: ").find("text/event-stream"), std::string::npos);
    hub.server().stop();
    hub.server().stop();
    hub.wait_stopped();
}

}  // namespace
}  // namespace moex::net
