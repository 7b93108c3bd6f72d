// The rules of fronts and fleets, nearly all without sockets: answers of hubs, events, proofs, and
// the choice of a hub.
#include <gtest/gtest.h>

#include "hub/api/hub_stops.h"
#include "hub/api/resumable.h"
#include "hub/net/fleet/fleet_proof.h"
#include "hub/net/front/hub_list.h"
#include "hub/net/front/stop_event.h"
#include "hub/net/http/client_line.h"
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

// Counts the ends of streams on one connection.
class CountingLine : public HttpResponder {
  public:
    void respond(HttpResponse) override {}
    void begin_stream(const std::string&) override { ++begun; }
    void expect_stream() override {}
    void send_event(StreamEvent, std::function<void()>) override {}
    void end_stream() override {}
    void on_disconnect(std::function<void()>) override {}
    int begun = 0;
};

// A connection that arrives between the search of a stream and its end would wait for ever.
TEST(ResumableStreamTest, AGivenUpStreamTakesNoConnection) {
    ResumableStreams streams;
    const auto first = std::make_shared<CountingLine>(), second = std::make_shared<CountingLine>();
    const auto opened = streams.open("owner", first);
    ASSERT_TRUE(opened.ok());
    const auto found = streams.find("owner", (*opened)->id());
    ASSERT_TRUE(found.ok());
    streams.drop((*opened)->id());
    const auto resumed = (*found)->resume(second, 0);
    ASSERT_FALSE(resumed.ok());
    EXPECT_EQ(resumed.refusal().status, 404u);
    EXPECT_EQ(second->begun, 0);
    EXPECT_EQ(second.use_count(), 1) << "the connection is free for another answer";
}

TEST(HubStopsTest, EveryDialectHasTheCodeThatFrontsRead) {
    for (const Dialect dialect :
         {Dialect::openai, Dialect::responses, Dialect::anthropic, Dialect::ollama}) {
        const HttpResponse answer = refusal_response(refuse_since_hub_stops(), dialect);
        EXPECT_TRUE(says_that_it_stops(answer.body)) << answer.body;
        const HttpResponse other = refusal_response({503, "shutting_down", "other", ""}, dialect);
        EXPECT_FALSE(says_that_it_stops(other.body)) << other.body;
    }
    EXPECT_TRUE(says_that_it_stops(
        R"({"type":"response.failed","response":{"error":{"code":"shutting_down"}}})"));
    for (const char* text : {"[DONE]", "shutting_down", R"({"code":"shutting_down"})",
                             R"({"response":{"metadata":{"code":"shutting_down"}}})",
                             R"({"error":"none","response":7})"})
        EXPECT_FALSE(says_that_it_stops(text)) << text;
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
    std::string pick(const std::set<std::string>& avoided = {}, const std::string& prompt = {}) {
        const auto found = hubs_.pick(avoided, now_, PrefixRoutes::keys_of(prompt));
        return found ? found->host : "none";
    }
    void end(const std::string& host) { hubs_.done("http://" + host + ":80"); }
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

// Returns a prompt of `blocks`: each letter is a block.
std::string prompt_of(std::string_view blocks) {
    std::string prompt;
    for (const char block : blocks) prompt += std::string(PrefixRoutes::block_bytes, block);
    return prompt;
}

TEST_F(HubListTest, APromptGoesWhereItsBeginningIs) {
    hubs_.set({hub("a"), hub("b"), hub("c")});
    const auto ask = [&](std::string_view blocks) {
        const std::string host = pick({}, prompt_of(blocks));
        end(host);
        return host;
    };
    const std::string first = ask("AB"), second = ask("XY"), third = ask("PQ");
    EXPECT_EQ(std::set({first, second, third}).size(), 3u) << "new prompts take turns";
    for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(ask("ABCD"), first);
        EXPECT_EQ(ask("XYZ"), second);
        EXPECT_EQ(ask("PQ"), third);
    }
    EXPECT_NE(pick({"http://" + first + ":80"}, prompt_of("AB")), first);
}

TEST_F(HubListTest, AShortBeginningDoesNotChangeTheTurns) {
    hubs_.set({hub("a"), hub("b"), hub("c")});
    std::map<std::string, int> counts;
    for (char last = 'a'; last < 'a' + 9; ++last) {
        const std::string host = pick({}, prompt_of("S" + std::string(8, last)));
        ++counts[host];
        end(host);
    }
    for (const auto& [host, count] : counts) EXPECT_EQ(count, 3) << host;
}

TEST_F(HubListTest, APromptLeavesAHubThatIsTooBusy) {
    hubs_.set({hub("a"), hub("b")});
    std::map<std::string, int> running;
    for (int i = 0; i < 100; ++i) {
        ++running[pick({}, prompt_of("AB"))];
        const auto [least, most] = std::minmax(running["a"], running["b"]);
        EXPECT_LE(2 * most, 3 * least + 3) << "after request " << i;
    }
}

// The obvious twin: whole prompts instead of keys.
TEST(PrefixRoutesTest, MatchesAreThoseOfWholePrompts) {
    PrefixRoutes routes;
    std::map<std::uint64_t, std::set<std::string>> sent;
    std::uint32_t random = 7;
    const auto next = [&](std::uint32_t below) {
        random = random * 1664525 + 1013904223;
        return (random >> 8) % below;
    };
    for (int i = 0; i < 500; ++i) {
        std::string blocks;
        for (std::uint32_t left = next(6); left > 0; --left)
            blocks += static_cast<char>('A' + next(2));
        const auto keys = PrefixRoutes::keys_of(prompt_of(blocks) + "tail");
        ASSERT_EQ(keys.size(), blocks.size());
        for (std::uint64_t hub = 0; hub < 3; ++hub) {
            std::size_t wanted = 0;
            for (std::size_t count = 1; count <= blocks.size(); ++count)
                if (sent[hub].contains(blocks.substr(0, count))) wanted = count;
            EXPECT_EQ(routes.matched(keys, hub), wanted) << blocks << " at " << hub;
        }
        const std::uint64_t hub = next(3);
        routes.record(keys, hub);
        for (std::size_t count = 1; count <= blocks.size(); ++count)
            sent[hub].insert(blocks.substr(0, count));
    }
}

TEST(PrefixRoutesTest, OldPromptsAreForgottenWithinTheBound) {
    PrefixRoutes routes(64);
    const auto keys = PrefixRoutes::keys_of(prompt_of("AB"));
    routes.record(keys, 1);
    for (int i = 0; i < 1000; ++i) {
        routes.record(
            PrefixRoutes::keys_of(std::string(256, 'x') + text(1000 + i) + std::string(300, 'y')),
            2);
        if (i >= 20) continue;
        EXPECT_EQ(routes.matched(keys, 1), 2u);
    }
    EXPECT_EQ(routes.matched(keys, 1), 0u);
}

// A front parses bodies before any hub has looked at them, or at their key.
TEST(PrefixRoutesTest, ADeepBodyHasNoKeysAndEndsNoFront) {
    constexpr std::size_t depth = 500'000;
    const std::string deep = "{\"prompt\":" + std::string(depth, '[') + std::string(depth, ']') +
                             ",\"system\":\"" + std::string(512, 'x') + "\"}";
    EXPECT_TRUE(PrefixRoutes::keys_of_body(deep).empty());
    EXPECT_EQ(PrefixRoutes::keys_of_body("{\"prompt\":\"" + std::string(512, 'x') + "\"}").size(),
              2u);
}

TEST(PrefixRoutesTest, AConversationKeepsTheKeysOfItsBeginning) {
    const std::string words = prompt_of("ABCD");
    const auto body = [&](const std::string& more) {
        return R"({"temperature":1,"messages":[{"role":"system","content":")" + words + "\"}" +
               more + R"(],"stream":true})";
    };
    const auto first = PrefixRoutes::keys_of_body(body(""));
    const auto later = PrefixRoutes::keys_of_body(body(R"(,{"role":"user","content":"and?"})"));
    ASSERT_GE(first.size(), 4u);
    for (std::size_t i = 0; i + 1 < first.size(); ++i) EXPECT_EQ(first[i], later[i]);
    for (const char* none : {"", "{", "[1]", "{\"messages\":1}"})
        EXPECT_TRUE(PrefixRoutes::keys_of_body(none).empty()) << none;
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

// A client that reads slowly makes the front read slowly. The hub is not silent for that reason.
TEST(ClientLineTest, APausedLineDoesNotEnd) {
    asio::io_context io;
    const auto strand = asio::make_strand(io);
    tcp::acceptor acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    std::optional<tcp::socket> hub;
    const auto send = [&](std::string_view words) { asio::write(*hub, asio::buffer(words)); };
    acceptor.async_accept([&](NetError, tcp::socket taken) {
        hub.emplace(std::move(taken));
        send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello");
    });

    constexpr Duration silent_max = std::chrono::milliseconds(20);
    std::shared_ptr<ClientLine> line;
    std::string body;
    std::optional<ClientLine::End> ended;
    asio::steady_timer timer(io);
    line = std::make_shared<ClientLine>(
        strand,
        HubAddress::parse(text("http://127.0.0.1:", acceptor.local_endpoint().port())).value(),
        nullptr,
        ClientLine::Events{.on_head =
                               [&](const ReplyHead&) {
                                   line->pause();
                                   timer.expires_after(5 * silent_max);
                                   timer.async_wait([&](NetError) {
                                       EXPECT_FALSE(ended);
                                       send(" sea");
                                       asio::post(strand, [&] { line->resume(); });
                                   });
                               },
                           .on_body = [&](std::string_view bytes) { body += bytes; },
                           .on_end = [&](ClientLine::End end) { ended = end; }},
        silent_max);
    asio::post(strand, [&] { line->start({.method = "GET", .target = "/"}); });
    io.run_for(std::chrono::seconds(30));
    EXPECT_EQ(body, "hello sea");
    EXPECT_EQ(ended, ClientLine::End::whole);
}

}  // namespace
}  // namespace moex::net
