// The rules of fronts and fleets without sockets: answers of hubs, events, proofs, and the choice
// of a hub.
#include <gtest/gtest.h>

#include "hub/net/fleet/fleet_proof.h"
#include "hub/net/front/hub_list.h"
#include "hub/net/http/event_blocks.h"
#include "hub/net/http/reply_reader.h"
#include "tests/support/must.h"

namespace moex::net {
namespace {

using test::must;
constexpr std::int64_t proven_s = 1'790'000'000;
using State = ReplyReader::State;

// Feeds `bytes` in pieces of every size, and expects the same result of each.
void expect_reply(std::string_view bytes, State wanted, std::string_view body) {
    for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
        ReplyReader reader;
        std::string got;
        for (std::string_view rest = bytes; !rest.empty();) {
            const std::string_view some = rest.substr(0, piece);
            reader.feed(some, got);
            rest.remove_prefix(some.size());
        }
        EXPECT_EQ(reader.state(), wanted) << "pieces of " << piece << ": " << bytes;
        EXPECT_EQ(got, body) << "pieces of " << piece;
    }
}

TEST(ReplyReaderTest, BodiesEndByLengthChunksOrConnection) {
    expect_reply("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", State::whole, "hello");
    expect_reply("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", State::body, "hell");
    expect_reply("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", State::whole, "");
    expect_reply("HTTP/1.1 204 No Content\r\n\r\n", State::whole, "");
    expect_reply(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1A;x=y\r\n"
        "abcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n",
        State::whole, "helloabcdefghijklmnopqrstuvwxyz");
    expect_reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", State::body,
                 "hello");
    expect_reply("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
                 State::whole, "x");

    ReplyReader to_end;
    std::string body;
    to_end.feed("HTTP/1.0 200 OK\r\n\r\nall", body);
    EXPECT_EQ(to_end.end(), State::whole);
    ReplyReader cut;
    cut.feed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", body);
    EXPECT_EQ(cut.end(), State::wrong) << "a body that is cut short is not whole";
}

TEST(ReplyReaderTest, AWrongAnswerIsNotRead) {
    for (const char* wrong :
         {"FTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 two OK\r\n\r\n",
          "HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n"}) {
        ReplyReader reader;
        std::string body;
        EXPECT_EQ(reader.feed(wrong, body), State::wrong) << wrong;
    }
    ReplyReader endless;
    std::string body;
    EXPECT_EQ(endless.feed(std::string(100'000, 'x'), body), State::wrong);
}

TEST(EventBlocksTest, EventsAreWholeWhateverThePieces) {
    const std::string stream =
        "id: 1\ndata: a\n\n: ping\n\nevent: e\nid: 2\ndata: b\ndata: c\n\nda";
    for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
        EventBlocks blocks;
        std::vector<std::string> got;
        for (std::size_t at = 0; at < stream.size(); at += piece)
            for (std::string& block : blocks.feed(std::string_view(stream).substr(at, piece)))
                got.push_back(std::move(block));
        ASSERT_EQ(got.size(), 3u) << "pieces of " << piece;
        EXPECT_EQ(read_event(got[0]).id, "1");
        EXPECT_TRUE(read_event(got[1]).is_comment);
        EXPECT_EQ(read_event(got[2]).data, "b\nc");
        EXPECT_EQ(read_event(got[2]).name, "e");
        EXPECT_EQ(without_id(got[2]), "event: e\ndata: b\ndata: c");
    }
}

TEST(FleetProofTest, AProofCoversItsRequestForAMinute) {
    FleetKey::Bits bits{};
    const FleetKey key(bits);
    bits[0] = std::byte{1};
    const FleetKey other(bits);
    HeaderList headers{{"x-moex-stream", "id"}, {"x-forwarded-for", "192.0.2.1"}};
    prove_fleet(key, "GET", "/v1/models", headers, proven_s);
    const auto is_right = [&](const HeaderList& with, const char* method = "GET",
                              const char* target = "/v1/models", std::int64_t at = proven_s) {
        return is_of_fleet(key, method, target, with, at);
    };
    EXPECT_TRUE(is_right(headers));
    EXPECT_TRUE(is_right(headers, "GET", "/v1/models", proven_s + 60));
    EXPECT_FALSE(is_right(headers, "GET", "/v1/models", proven_s + 61));
    EXPECT_FALSE(is_right(headers, "GET", "/v1/models", proven_s - 61));
    EXPECT_FALSE(is_right(headers, "POST"));
    EXPECT_FALSE(is_right(headers, "GET", "/v1/models?x"));
    EXPECT_FALSE(is_of_fleet(other, "GET", "/v1/models", headers, proven_s));
    EXPECT_FALSE(is_right({}));
    for (std::size_t i = 0; i < headers.size(); ++i) {
        HeaderList changed = headers;
        changed[i].second += '0';
        EXPECT_FALSE(is_right(changed)) << changed[i].first;
    }
    HeaderList more = headers;
    more.emplace_back("x-moex-passed", "1");
    EXPECT_FALSE(is_right(more));
}

TEST(HubAddressTest, UrlsAreReadAndOthersRefused) {
    EXPECT_EQ(must(HubAddress::parse("http://127.0.0.1:8080")).authority(), "127.0.0.1:8080");
    EXPECT_EQ(must(HubAddress::parse("https://hub.example/")).url(), "https://hub.example:443");
    EXPECT_EQ(must(HubAddress::parse("http://[::1]:81")).authority(), "[::1]:81");
    EXPECT_EQ(must(HubAddress::parse("http://[::1]")).host, "::1");
    for (const char* wrong : {"", "hub.example", "ftp://x", "http://", "http://x:", "http://x:y",
                              "http://x/path", "http://user@x", "http://:80"})
        EXPECT_FALSE(HubAddress::parse(wrong).ok()) << wrong;
}

class HubListTest : public testing::Test {
  protected:
    static HubList::Known hub(const std::string& name, bool lives = true) {
        return {must(HubAddress::parse("http://" + name)), lives};
    }
    std::string pick(const std::set<std::string>& avoided = {}) {
        const auto found = hubs_.pick(avoided, now_);
        return found ? found->host : "none";
    }
    HubList hubs_;
    TimePoint now_ = now_steady();
};

TEST_F(HubListTest, HubsTakeTurnsWithinTheLoadGuard) {
    hubs_.set({hub("a"), hub("b"), hub("c")});
    std::map<std::string, int> counts;
    for (int i = 0; i < 30; ++i) ++counts[pick()];
    EXPECT_EQ(counts["a"], 10);
    EXPECT_EQ(counts["b"], 10);
    // Only b's requests end, so that a and c have more than 1.5 times as many.
    for (int i = 0; i < 10; ++i) hubs_.done("http://b:80");
    for (int i = 0; i < 6; ++i) EXPECT_EQ(pick(), "b");
}

TEST_F(HubListTest, DeadAvoidedAndFailedHubsAreLeftOut) {
    EXPECT_EQ(pick(), "none");
    hubs_.set({hub("a"), hub("b", false), hub("c")});
    for (int i = 0; i < 10; ++i) EXPECT_NE(pick(), "b");
    EXPECT_EQ(pick({"http://a:80"}), "c");
    EXPECT_EQ(pick({"http://a:80", "http://c:80"}), "none");
    hubs_.failed("http://a:80", now_);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(pick(), "c");
    hubs_.failed("http://c:80", now_);
    EXPECT_NE(pick(), "none") << "if all have failed, one is tried again";
    now_ += std::chrono::seconds(1);
    EXPECT_NE(pick({"http://c:80"}), "none");
}

}  // namespace
}  // namespace moex::net
