// Tests of /worker with hostile peers over a real socket: upgrades, WebSocket frames and HELLOs.
// Each connection ends with the expected close code, and the hub continues to serve.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "protocol/messages.h"
#include "tests/hub/net/hub_fixture.h"
#include "tests/hub/net/raw_client.h"

namespace moex::net {
namespace {

using namespace std::chrono_literals;

Hello good_hello(const std::string& token) {
    Hello hello;
    hello.token = token;
    hello.device.backend = "vulkan";
    hello.device.budget_bytes = 1 << 20;
    hello.kernel_version = "1";
    hello.client = "test 0.1.0";
    hello.worker_key = "test";
    return hello;
}
constexpr int op_text = 1;

class HostileWorkerTest : public testing::Test {
  protected:
    static TestHubOptions options() {
        TestHubOptions options;
        options.swarm.hello_within = 300ms;
        return options;
    }
    struct Row {
        const char* name;
        std::function<void(RawClient&)> act;
        std::vector<int> codes;  // allowed close codes; -1: the connection ends without one
    };
    // Runs each row on a separate connection.
    void expect_closed(const std::vector<Row>& rows) {
        for (const Row& row : rows) {
            SCOPED_TRACE(row.name);
            RawClient client(hub_.port());
            ASSERT_TRUE(client.upgrade(hub_.port(), hub_.page_origin()));
            row.act(client);

            const RawFrame end = client.read_close(3s);
            const int code = end.opcode == 8 ? end.close_code() : -1;
            EXPECT_NE(std::find(row.codes.begin(), row.codes.end(), code), row.codes.end())
                << "closed with " << code << ' '
                << end.payload.substr(std::min<std::size_t>(2, end.payload.size()));
        }
    }
    // Checks that the hub still accepts an honest worker, which then disconnects.
    void expect_welcome() {
        RawClient client(hub_.port());
        ASSERT_TRUE(client.upgrade(hub_.port(), hub_.page_origin()));
        client.send_frame(op_binary, as_string(encode_hello(good_hello(hub_.token()))));

        const RawFrame answer = client.read_frame(3s);
        ASSERT_EQ(answer.opcode, op_binary);
        EXPECT_TRUE(decode_welcome(as_byte_view(answer.payload)).ok());
    }
    TestHub hub_{options()};
};

TEST_F(HostileWorkerTest, UpgradesAreJudged) {
    const std::string own = hub_.page_origin();
    const auto status_of = [&](const std::string& lines) {
        return fetch(hub_.port(), "GET", "/worker", lines).status;
    };
    const std::string good =
        "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: "
        "13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    EXPECT_EQ(status_of(good + own), 101u);
    EXPECT_EQ(status_of(good + hub_.bearer()), 101u);

    // no Origin of a hub's page, and no valid token
    EXPECT_EQ(status_of(good), 401u);
    EXPECT_EQ(status_of(good + "Authorization: Bearer wrong\r\n"), 401u);
    EXPECT_EQ(status_of(good + own + "Authorization: Bearer wrong\r\n"), 401u);
    EXPECT_EQ(status_of(good + "Origin: http://evil.example\r\n" + hub_.bearer()), 403u);
    EXPECT_EQ(status_of(good + "Origin: null\r\n" + hub_.bearer()), 403u);
    EXPECT_EQ(status_of(good + own + "Host: rebound.example\r\n"), 403u);
    EXPECT_EQ(status_of(own), 426u);
    EXPECT_EQ(status_of("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: "
                        "8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
                        own),
              426u);
    EXPECT_EQ(
        status_of("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n" +
                  own),
        426u);
    EXPECT_EQ(status_of("Upgrade: h2c\r\nConnection: Upgrade\r\n" + own), 426u);

    // Bytes follow the upgrade request at once, so the socket cannot be handed over to a WebSocket.
    RawClient hasty(hub_.port());
    hasty.send("GET /worker HTTP/1.1\r\nHost: localhost\r\n" + good + hub_.bearer() + "\r\nGET ");
    const RawResponse early = hasty.read_response();
    EXPECT_EQ(early.status, 400u);
    EXPECT_NE(early.body.find("early_data"), std::string::npos) << early.body;
    EXPECT_TRUE(hub_.healthy());
}

// The hub enforces the rules of RFC 6455 for an opening handshake, also where two proxies would
// read a request differently.
TEST_F(HostileWorkerTest, AnUpgradeIsOfHttp11WithARealKeyAndWithoutABody) {
    const auto status_of = [&](const char* version, const char* key, const std::string& rest) {
        RawClient client(hub_.port());
        client.send(std::string("GET /worker HTTP/") + version +
                    "\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
                    key + "\r\n" + hub_.bearer() + rest);
        return client.read_response(true).status;
    };

    const char* const key = "dGhlIHNhbXBsZSBub25jZQ==";
    EXPECT_EQ(status_of("1.1", key, "\r\n"), 101u);
    EXPECT_EQ(status_of("1.0", key, "\r\n"), 426u);

    for (const char* bad : {"dGhlIHNhbXBsZSBub25jZQ", "dGhlIHNhbXBsZSBub25jZQAA",
                            "dGhlIHNhbXBsZSBub25jZR==", "????????????????????????",
                            "dGhlIHNhbXBsZSBub25j==ZQ", "dGhlIHNhbXBsZSBub25jZQ==dGhl"})
        EXPECT_EQ(status_of("1.1", bad, "\r\n"), 426u) << bad;

    EXPECT_EQ(status_of("1.1", key, "Content-Length: 5\r\n\r\nhello"), 400u);
    EXPECT_EQ(status_of("1.1", key, "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400u);
    EXPECT_EQ(status_of("1.1", key, "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"), 400u);
    EXPECT_TRUE(hub_.healthy());
}

TEST_F(HostileWorkerTest, FramesThatBreakTheWebSocketRules) {
    const std::string hello = as_string(encode_hello(good_hello(hub_.token())));
    expect_closed({
        {"text frame", [&](RawClient& c) { c.send_frame(op_text, "{}"); }, {1003}},
        {"unmasked frame", [&](RawClient& c) { c.send_frame(op_binary, hello, false); }, {1002}},
        {"reserved opcode 3", [&](RawClient& c) { c.send_frame(3, hello); }, {1002}},
        {"reserved control opcode 11", [&](RawClient& c) { c.send_frame(11, ""); }, {1002}},
        {"reserved bit 1 (compression)",
         [&](RawClient& c) { c.send_frame(op_binary, hello, true, true, 4); },
         {1002}},
        {"reserved bit 3",
         [&](RawClient& c) { c.send_frame(op_binary, hello, true, true, 1); },
         {1002}},
        {"fragmented ping", [&](RawClient& c) { c.send_frame(9, "x", true, false); }, {1002}},
        {"ping of 126 bytes",
         [&](RawClient& c) { c.send_frame(9, std::string(126, 'x')); },
         {1002}},
        {"continuation of nothing", [&](RawClient& c) { c.send_frame(0, hello); }, {1002}},
        {"a second first fragment",
         [&](RawClient& c) {
             c.send_frame(op_binary, "MoEx", true, false), c.send_frame(op_binary, "MoEx");
         },
         {1002}},
        {"close with one byte", [&](RawClient& c) { c.send_frame(8, "x"); }, {1002}},
        {"close with code 1005",
         [&](RawClient& c) { c.send_frame(8, std::string("\x03\xed", 2)); },
         {1002}},
        {"frame beyond 64 KiB before HELLO",
         [&](RawClient& c) { c.send_frame(op_binary, std::string(70000, 'x')); },
         {1009}},
        {"fragments beyond 64 KiB before HELLO",
         [&](RawClient& c) {
             c.send_frame(op_binary, std::string(40000, 'x'), true, false),
                 c.send_frame(0, std::string(40000, 'x'));
         },
         {1009}},
        {"a length of 2^62 announced",
         [&](RawClient& c) { c.send(std::string("\x82\xff\x40\0\0\0\0\0\0\0\1\2\3\4", 14)); },
         {1009}},
        {"a length with its top bit",
         [&](RawClient& c) { c.send(std::string("\x82\xff\x80\0\0\0\0\0\0\0\1\2\3\4", 14)); },
         {1002, 1009}},
        {"a length in more bytes than it needs",
         [&](RawClient& c) { c.send(std::string("\x82\xfe\0\x02\1\2\3\4ab", 10)); },
         {1002}},
    });
    EXPECT_TRUE(hub_.healthy());
    expect_welcome();
}

TEST_F(HostileWorkerTest, FramesAndHellosThatBreakTheProtocol) {
    const std::string hello = as_string(encode_hello(good_hello(hub_.token())));
    std::string bad_magic = hello, bad_version = hello, bad_type = hello, long_payload = hello;
    bad_magic[0] = 'X';
    bad_version[4] = 9;
    bad_type[6] = 99;
    long_payload[8] = static_cast<char>(long_payload[8] + 1);

    Hello wrong_token = good_hello("wrong"), future = good_hello(hub_.token());
    future.version_min = future.version_max = 2;

    ByteWriter bad_json(0);
    begin_frame(bad_json, FrameType::hello, 0);
    bad_json.raw(as_byte_view("{\"token\": "));

    ByteWriter huge_hello(0);
    begin_frame(huge_hello, FrameType::hello, 0);
    huge_hello.raw(as_byte_view("{\"token\": \"" + std::string(5000, 'a') + "\"}"));

    ByteWriter lying(0);
    begin_frame(lying, FrameType::group_result, 1);
    lying.raw(as_byte_view(std::string(100, 'x')));

    const auto frame = [](std::string bytes) {
        return
            [bytes = std::move(bytes)](RawClient& client) { client.send_frame(op_binary, bytes); };
    };
    expect_closed({
        {"empty frame", frame(""), {1002}},
        {"15 bytes", frame(hello.substr(0, 15)), {1002}},
        {"bad magic", frame(bad_magic), {1002}},
        {"bad version", frame(bad_version), {1002}},
        {"unknown type", frame(bad_type), {1002}},
        {"payload longer than said", frame(hello + "x"), {1002}},
        {"payload shorter than said", frame(long_payload), {1002}},
        {"HELLO that is no JSON", frame(as_string(finish_frame(std::move(bad_json)))), {1002}},
        {"HELLO beyond 4 KiB", frame(as_string(finish_frame(std::move(huge_hello)))), {1002, 1009}},
        {"HELLO with a wrong token", frame(as_string(encode_hello(wrong_token))), {1008}},
        {"HELLO without a token", frame(as_string(encode_hello(good_hello("")))), {1008}},
        {"HELLO of a future version", frame(as_string(encode_hello(future))), {1002}},
        {"an answer before HELLO", frame(as_string(finish_frame(std::move(lying)))), {1002, 1008}},
        {"READY before HELLO", frame(as_string(encode_ready({{0, 0}}))), {1002, 1008}},
        {"HEARTBEAT without a token", frame(as_string(encode_heartbeat(1, "{}"))), {1002, 1008}},
        {"no HELLO in time", [&](RawClient&) {}, {1008, 1002}},
    });
    EXPECT_TRUE(hub_.healthy());
    expect_welcome();
}

// Worker events are counted: workers that joined, and welcomed workers that were ejected for a
// second HELLO or for a text message.
TEST_F(HostileWorkerTest, WelcomedWorkersThatArePutOutAreCounted) {
    const std::string hello = as_string(encode_hello(good_hello(hub_.token())));
    expect_closed({
        {"text frame after HELLO",
         [&](RawClient& c) { c.send_frame(op_binary, hello), c.send_frame(op_text, "hi"); },
         {1003}},
        {"a second HELLO",
         [&](RawClient& c) { c.send_frame(op_binary, hello), c.send_frame(op_binary, hello); },
         {1002, 1008}},
    });
    expect_welcome();

    const std::string metrics = fetch(hub_.port(), "GET", "/metrics").body;
    for (const char* row : {"moex_worker_events_total{event=\"joined\"} 3",
                            "moex_worker_events_total{event=\"removed\"} 1",
                            "moex_ejections_total{reason=\"bad_frame\"} 2"})
        EXPECT_NE(metrics.find(row), std::string::npos) << row << '\n' << metrics;
}

// A peer that announces a long frame and does not send its bytes must not make the hub hold memory
// for the whole frame. After WELCOME a frame may only be as long as the answers that are
// outstanding. These peers have no outstanding answers.
TEST_F(HostileWorkerTest, AFrameThatNobodyAskedForMayNotBeLong) {
    std::vector<std::unique_ptr<RawClient>> peers;
    for (int i = 0; i < 14; ++i) {
        peers.push_back(std::make_unique<RawClient>(hub_.port()));
        ASSERT_TRUE(peers.back()->upgrade(hub_.port(), hub_.page_origin()));
        Hello hello = good_hello(hub_.token());
        hello.worker_key = text("peer ", i);
        peers.back()->send_frame(op_binary, as_string(encode_hello(hello)));
        const RawFrame answer = peers.back()->read_frame();
        ASSERT_EQ(answer.opcode, op_binary);
        ASSERT_TRUE(decode_welcome(as_byte_view(answer.payload)).ok());
        // announces 900,000 bytes and sends the first four
        ASSERT_TRUE(peers.back()->send(std::string("\x82\xff\0\0\0\0\0\x0d\xbb\xa0MASKMoEx", 18)));
    }
    for (auto& peer : peers) EXPECT_EQ(peer->read_close(5s).close_code(), 1009);
    EXPECT_TRUE(hub_.healthy());
}

TEST_F(HostileWorkerTest, PingsAreAnsweredAndFragmentsJoined) {
    const std::string hello = as_string(encode_hello(good_hello(hub_.token())));
    RawClient client(hub_.port());
    ASSERT_TRUE(client.upgrade(hub_.port(), hub_.page_origin()));
    client.send_frame(op_binary, hello.substr(0, 10), true, false);
    client.send_frame(9, "are you there");
    client.send_frame(0, hello.substr(10));
    const RawFrame pong = client.read_frame(3s);
    EXPECT_EQ(pong.opcode, 10);
    EXPECT_EQ(pong.payload, "are you there");
    const RawFrame answer = client.read_frame(3s);
    ASSERT_EQ(answer.opcode, op_binary);
    EXPECT_TRUE(decode_welcome(as_byte_view(answer.payload)).ok());
}

// Sends a HELLO in fragments with pings between them. In further runs the connection ends after
// each fragment: with a close frame, in the middle of a frame, or without any frame.
TEST_F(HostileWorkerTest, ControlFramesAndEndsAreTakenAtEveryMoment) {
    const std::string hello = as_string(encode_hello(good_hello(hub_.token())));
    constexpr std::size_t num_parts = 6;
    const std::size_t part_bytes = hello.size() / num_parts + 1;

    for (const char* ending : {"close", "half frame", "cut"}) {
        for (std::size_t moment = 0; moment <= num_parts; ++moment) {
            SCOPED_TRACE(testing::Message() << ending << " after part " << moment);
            RawClient client(hub_.port());
            ASSERT_TRUE(client.upgrade(hub_.port(), hub_.page_origin()));
            for (std::size_t part = 0; part < moment; ++part) {
                client.send_frame(part == 0 ? op_binary : 0,
                                  hello.substr(part * part_bytes, part_bytes), true,
                                  part + 1 == num_parts);
                client.send_frame(9, std::to_string(part));
            }

            std::size_t pongs = 0, welcomes = 0;
            while (pongs < moment || (moment == num_parts && welcomes == 0)) {
                const RawFrame frame = client.read_frame(3s);
                ASSERT_NE(frame.opcode, -1);
                if (frame.opcode == 10) EXPECT_EQ(frame.payload, std::to_string(pongs++));
                if (frame.opcode == op_binary)
                    welcomes += decode_welcome(as_byte_view(frame.payload)).ok();
            }

            if (ending == std::string("close")) {
                client.send_frame(8, "\x03\xe8");
                EXPECT_EQ(client.read_close(3s).close_code(), 1000);
            } else if (ending == std::string("half frame")) {
                client.send("\x82\xfe");
            }
        }
    }
    EXPECT_TRUE(hub_.healthy());
    expect_welcome();
}

TEST(WorkerLimitsTest, AnAddressMayLendSoManyWorkers) {
    TestHubOptions options;
    options.server.workers_per_address_max = 2;
    TestHub hub(options);
    RawClient first(hub.port()), second(hub.port()), again(hub.port()), third(hub.port());

    const auto join = [&](RawClient& client, const char* key) {
        Hello hello = good_hello(hub.token());
        hello.worker_key = key;
        ASSERT_TRUE(client.upgrade(hub.port(), hub.page_origin()));
        client.send_frame(op_binary, as_string(encode_hello(hello)));
        // WELCOME: the hub has counted this worker.
        EXPECT_EQ(client.read_frame(3s).opcode, op_binary);
    };
    join(first, "first");
    join(second, "second");
    // A worker that reconnects before its old connection timed out takes the place of the old
    // connection.
    join(again, "first");
    EXPECT_EQ(first.read_close(3s).close_code(), 1008);
    // A worker beyond the limit of its address receives the reason, and is not admitted: it gets no
    // WELCOME.
    Hello hello = good_hello(hub.token());
    hello.worker_key = "third";
    ASSERT_TRUE(third.upgrade(hub.port(), hub.page_origin()));
    third.send_frame(op_binary, as_string(encode_hello(hello)));
    const RawFrame refusal = third.read_frame(3s);
    EXPECT_FALSE(decode_welcome(as_byte_view(refusal.payload)).ok());
    EXPECT_TRUE(decode_error(as_byte_view(refusal.payload)).ok());
    const RawFrame end = third.read_close(3s);
    EXPECT_EQ(end.close_code(), 1001);
    EXPECT_NE(end.payload.find("lends 2 workers"), std::string::npos);
    again.send_frame(9, "still there");
    RawFrame pong = again.read_frame(3s);
    while (pong.opcode == op_binary) pong = again.read_frame(3s);
    EXPECT_EQ(pong.opcode, 10);
    // A worker that lost its place to its own new connection does not count as ejected, and a
    // worker that was not admitted does not count as joined.
    const std::string metrics = fetch(hub.port(), "GET", "/metrics").body;
    EXPECT_NE(metrics.find("moex_ejections_total{reason=\"bad_answers\"} 0"), std::string::npos);
    EXPECT_NE(metrics.find("moex_worker_events_total{event=\"joined\"} 3"), std::string::npos)
        << metrics;
}

// Connections that never send HELLO occupy at most the places of their address. Beyond that an
// upgrade is refused at once.
TEST(WorkerLimitsTest, AnAddressMayHoldSoManyWorkerSockets) {
    TestHubOptions options;
    options.server.workers_per_address_max = 1;
    TestHub hub(options);
    auto first = std::make_unique<RawClient>(hub.port());
    RawClient second(hub.port());
    ASSERT_TRUE(first->upgrade(hub.port(), hub.page_origin()));
    ASSERT_TRUE(second.upgrade(hub.port(), hub.page_origin()));

    const auto ask = [&] {
        return fetch(hub.port(), "GET", "/worker",
                     "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
                         hub.page_origin());
    };

    const RawResponse refused = ask();
    EXPECT_EQ(refused.status, 429u);
    EXPECT_TRUE(refused.headers.contains("retry-after"));

    first.reset();
    // The place of the closed connection is free again.
    EXPECT_TRUE(eventually([&] { return ask().status == 101; }));
}

TEST(WorkerLimitsTest, FailedHellosBanTheAddress) {
    TestHubOptions options;
    options.server.rates = {.worker_connects_per_minute = 100,
                            .worker_connects_burst = 100,
                            .hello_failures_per_minute = 2,
                            .loopback_factor = 1};
    TestHub hub(options);
    const std::string bad = as_string(encode_hello(good_hello("wrong")));

    for (int i = 0; i < 3; ++i) {
        RawClient client(hub.port());
        ASSERT_TRUE(client.upgrade(hub.port(), hub.page_origin()));
        client.send_frame(op_binary, bad);
        EXPECT_EQ(client.read_close(3s).close_code(), 1008);
        ASSERT_TRUE(client.wait_closed());
    }

    const RawResponse refused = fetch(
        hub.port(), "GET", "/worker",
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: "
        "13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
            hub.page_origin());
    EXPECT_EQ(refused.status, 429u);
    EXPECT_TRUE(refused.headers.contains("retry-after"));
    EXPECT_TRUE(hub.healthy());
}

}  // namespace
}  // namespace moex::net
