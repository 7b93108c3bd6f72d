// Tests of the request gate without a server: hostile requests, passed whole or byte by byte, and
// requests that it must accept.
#include "hub/net/http/request_gate.h"

#include <gtest/gtest.h>

#include "tests/hub/net/http/hostile_requests.h"

namespace moex::net {
namespace {

using State = RequestGate::State;

std::size_t feed_all(RequestGate& gate, std::string_view bytes) {
    std::size_t taken = 0;
    while (taken < bytes.size() && gate.state() != State::done && gate.state() != State::refused)
        taken += gate.feed(bytes.substr(taken));
    return taken;
}

class HostileTest : public testing::TestWithParam<HostileRequest> {};

TEST_P(HostileTest, IsRefusedWithItsStatus) {
    RequestGate gate({});
    feed_all(gate, GetParam().bytes);
    ASSERT_EQ(gate.state(), State::refused) << GetParam().name;
    EXPECT_EQ(gate.refusal().status, GetParam().status) << gate.refusal().message;
    EXPECT_FALSE(gate.refusal().message.empty());
}

TEST_P(HostileTest, IsRefusedByteByByteToo) {
    RequestGate gate({});
    for (const char byte : GetParam().bytes)
        if (gate.state() != State::refused) gate.feed(std::string_view(&byte, 1));
    ASSERT_EQ(gate.state(), State::refused) << GetParam().name;
    EXPECT_EQ(gate.refusal().status, GetParam().status);
}

INSTANTIATE_TEST_SUITE_P(Table, HostileTest, testing::ValuesIn(hostile_requests()),
                         [](const auto& info) {
                             std::string name;
                             bool upper = true;
                             for (const char c : std::string(info.param.name)) {
                                 if (isalnum(static_cast<unsigned char>(c)))
                                     name += upper ? static_cast<char>(toupper(c)) : c;
                                 upper = !isalnum(static_cast<unsigned char>(c));
                             }
                             return name + std::to_string(info.index);
                         });

TEST(RequestGateTest, APlainRequestPasses) {
    RequestGate gate({});
    const std::string bytes =
        "GET /js/a%20b.js?x=%31 HTTP/1.1\r\nHost: localhost:8080\r\nX-Odd:   spaced \t\r\n\r\nGET ";
    EXPECT_EQ(feed_all(gate, bytes), bytes.size() - 4);
    ASSERT_EQ(gate.state(), State::done);

    const GatedRequest request = gate.take();
    EXPECT_EQ(request.method, "GET");
    EXPECT_EQ(request.path, "/js/a b.js");
    EXPECT_EQ(request.query, "x=%31");
    ASSERT_EQ(request.headers.size(), 2u);
    EXPECT_EQ(request.headers[1], (std::pair<std::string, std::string>("x-odd", "spaced")));
    EXPECT_TRUE(request.keep_alive);
    EXPECT_EQ(gate.state(), State::idle);
}

TEST(RequestGateTest, ChunksAreJoinedAndTrailersDropped) {
    const std::string bytes =
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
        "Chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-Trailer: 1\r\n\r\n";
    for (std::size_t split = 1; split < bytes.size(); ++split) {
        RequestGate gate({});
        feed_all(gate, std::string_view(bytes).substr(0, split));
        feed_all(gate, std::string_view(bytes).substr(split));
        ASSERT_EQ(gate.state(), State::done) << split;
        const GatedRequest request = gate.take();
        EXPECT_EQ(request.body, "abc0123456789");
        for (const auto& [name, value] : request.headers) EXPECT_NE(name, "x-trailer");
    }
}

// The items of the Connection header are compared as whole words: "closely" does not mean "close".
TEST(RequestGateTest, ConnectionIsAListOfWords) {
    const struct {
        const char* version;
        const char* lines;
        bool keep_alive;
    } rows[] = {
        {"1.1", "", true},
        {"1.1", "Connection: closely\r\n", true},
        {"1.1", "Connection: x-close, upgrade\r\n", true},
        {"1.1", "Connection: Upgrade ,\tCLOSE\r\n", false},
        {"1.1", "Connection: upgrade\r\nConnection: close\r\n", false},
        {"1.0", "", false},
        {"1.0", "Connection: not-keep-alive\r\n", false},
        {"1.0", "Connection: Keep-Alive\r\n", true},
        {"1.0", "Connection: keep-alive, close\r\n", false},
    };

    for (const auto& row : rows) {
        RequestGate gate({});
        feed_all(gate,
                 std::string("GET / HTTP/") + row.version + "\r\nHost: h\r\n" + row.lines + "\r\n");
        ASSERT_EQ(gate.state(), State::done) << row.lines;
        EXPECT_EQ(gate.take().keep_alive, row.keep_alive) << row.version << ' ' << row.lines;
    }
}

// A header that is a list may be sent in several lines; they mean the same as one line.
TEST(RequestGateTest, FieldsThatAreListsMayRepeat) {
    RequestGate gate({});
    feed_all(gate,
             "GET / HTTP/1.1\r\nHost: h\r\nAccept: a/b\r\nAccept: c/d\r\nX-Forwarded-For: "
             "10.0.0.1\r\nX-Forwarded-For: 10.0.0.2\r\n\r\n");
    EXPECT_EQ(gate.state(), State::done);
}

TEST(RequestGateTest, LengthsAndKeepAlive) {
    RequestGate gate({});
    feed_all(gate, "POST / HTTP/1.0\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
    ASSERT_EQ(gate.state(), State::done);

    GatedRequest request = gate.take();
    EXPECT_EQ(request.body, "hello");
    EXPECT_FALSE(request.keep_alive);

    feed_all(gate, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    ASSERT_EQ(gate.state(), State::done);
    EXPECT_FALSE(gate.take().keep_alive);

    feed_all(gate,
             "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n");
    EXPECT_EQ(gate.state(), State::body);
    EXPECT_TRUE(gate.take_expects_continue());
    EXPECT_FALSE(gate.take_expects_continue());
}

}  // namespace
}  // namespace moex::net
