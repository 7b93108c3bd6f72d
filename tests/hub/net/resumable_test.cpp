// Tests of streams that outlive their connection, over real sockets. Clients disconnect at random
// places and reconnect, with their key or with another key.
#include <atomic>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/hub/net/hub_fixture.h"
#include "tests/hub/net/raw_client.h"

namespace moex::net {
namespace {

using Json = nlohmann::json;

struct Event {
    std::uint64_t id = 0;
    std::string data;
};

Json body_of(int max_tokens, bool resumable) {
    Json body{{"prompt", "Once upon a time"},
              {"max_tokens", max_tokens},
              {"stream", true},
              {"temperature", 0.8},
              {"seed", 7},
              {"logit_bias", {{"8189", -100}, {"8190", -100}, {"8191", -100}}}};
    if (resumable) body["moex"] = {{"resumable", true}};
    return body;
}

std::string post_of(const Json& body, const std::string& header_lines = {}) {
    const std::string words = body.dump();
    return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
           "Content-Length: " +
           std::to_string(words.size()) + "\r\n" + header_lines + "\r\n" + words;
}

// Reads a stream over one connection. Every event is a separate HTTP chunk, so the text of an event
// is contiguous.
class StreamReader {
  public:
    StreamReader(std::uint16_t port, const std::string& request) : client_(port) {
        client_.send(request);
        head_ = client_.read_until("\r\n\r\n", 60s);
    }
    static std::string resume(const std::string& id, std::uint64_t last_event,
                              const std::string& header_lines = {}) {
        return "GET /v1/streams/" + id +
               " HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: " + std::to_string(last_event) +
               "\r\n" + header_lines + "\r\n";
    }

    std::string id() const {
        const std::string name = "X-Moex-Stream: ";
        const std::size_t at = head_.find(name);
        return at == std::string::npos ? "" : head_.substr(at + name.size(), 32);
    }
    // Returns the next event; nullopt: the stream has ended.
    std::optional<Event> next() {
        const std::string words = client_.read_until("\n\n", 60s);
        const std::size_t data = words.find("data: ");
        if (data == std::string::npos || !words.ends_with("\n\n")) return std::nullopt;
        Event event{.data = words.substr(data + 6, words.size() - data - 8)};
        if (const std::size_t id = words.find("id: "); id < data)
            event.id = std::stoull(words.substr(id + 4));
        return event;
    }
    void read_a_little() { client_.read_until("dat", 60s); }
    void close() { client_.close(); }
    const std::string& head() const { return head_; }

  private:
    RawClient client_;
    std::string head_;
};

// Returns the joined texts of the events; [DONE] must be the last event.
std::string text_of(const std::vector<Event>& events) {
    std::string words;
    for (const Event& event : events) {
        if (event.data == "[DONE]") continue;
        const Json chunk = Json::parse(event.data);
        for (const Json& choice : chunk["choices"]) words += choice["text"].get<std::string>();
    }
    EXPECT_FALSE(events.empty() || events.back().data != "[DONE]");
    return words;
}

std::vector<Event> rest_of(StreamReader& reader) {
    std::vector<Event> events;
    while (const auto event = reader.next()) {
        events.push_back(*event);
        if (event->data == "[DONE]") break;
    }
    return events;
}

int running_now(std::uint16_t port) {
    return Json::parse(fetch(port, "GET", "/api/status").body)["engine"]["running"];
}

TEST(ResumableTest, EachEventComesOnceWhereverTheLineBreaks) {
    TestHub hub;
    StreamReader plain(hub.port(), post_of(body_of(40, false)));
    EXPECT_EQ(plain.id(), "");
    const std::vector<Event> whole = rest_of(plain);
    EXPECT_EQ(whole.front().id, 0u);
    const std::string wanted = text_of(whole);
    ASSERT_GT(wanted.size(), 20u);

    std::mt19937 random(7);
    for (int round = 0; round < 6; ++round) {
        StreamReader first(hub.port(), post_of(body_of(40, true)));
        const std::string id = first.id();
        ASSERT_EQ(id.size(), 32u) << first.head();

        std::vector<Event> events;
        StreamReader* reader = &first;
        std::unique_ptr<StreamReader> later;
        while (events.empty() || events.back().data != "[DONE]") {
            for (std::uint32_t left = random() % 14; left > 0; --left) {
                const auto event = reader->next();
                ASSERT_TRUE(event);
                events.push_back(*event);
                if (event->data == "[DONE]") break;
            }
            if (random() % 2 == 0 && (events.empty() || events.back().data != "[DONE]"))
                reader->read_a_little();
            // Close the connection, or leave it open: the newest connection receives all further
            // events.
            if (random() % 2 == 0) reader->close();
            const std::uint64_t last = events.empty() ? 0 : events.back().id;
            auto next = std::make_unique<StreamReader>(hub.port(), StreamReader::resume(id, last));
            ASSERT_EQ(next->id(), id) << next->head();
            later = std::move(next);
            reader = later.get();
        }
        for (std::size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].id, i + 1);
        EXPECT_EQ(events.size(), whole.size());
        EXPECT_EQ(text_of(events), wanted) << "round " << round;
    }
}

TEST(ResumableTest, AnAnswerThatNobodyHearsIsKeptToItsEnd) {
    TestHub hub;
    StreamReader first(hub.port(), post_of(body_of(40, true)));
    const std::string id = first.id();
    first.close();
    ASSERT_TRUE(eventually([&] { return running_now(hub.port()) == 0; }));

    StreamReader again(hub.port(), StreamReader::resume(id, 0));
    const std::vector<Event> events = rest_of(again);
    EXPECT_FALSE(text_of(events).empty());
    // Resume once more: the client cannot know that the last bytes have arrived.
    const std::uint64_t last = events.back().id;
    StreamReader tail(hub.port(), StreamReader::resume(id, last - 1));
    const auto end = tail.next();
    ASSERT_TRUE(end);
    EXPECT_EQ(end->data, "[DONE]");
    EXPECT_EQ(end->id, last);
    EXPECT_EQ(fetch(hub.port(), "GET", "/v1/streams/" + id,
                    "Last-Event-ID: " + std::to_string(last + 1) + "\r\n")
                  .status,
              400u);
    EXPECT_EQ(fetch(hub.port(), "GET", "/v1/streams/" + id, "Last-Event-ID: seven\r\n").status,
              400u);
}

TEST(ResumableTest, AnotherKeyDoesNotOpenAStream) {
    TestHubOptions options;
    options.server.require_keys = true;
    TestHub hub(options);
    const auto key = [&](const char* name) {
        return "Authorization: Bearer " + hub.registry().create_key(Role::api, name).value() +
               "\r\n";
    };
    const std::string mine = key("mine"), other = key("other");
    StreamReader reader(hub.port(), post_of(body_of(12, true), mine));
    const std::string path = "/v1/streams/" + reader.id();
    for (const char* method : {"GET", "DELETE"}) {
        EXPECT_EQ(fetch(hub.port(), method, path).status, 401u);
        EXPECT_EQ(fetch(hub.port(), method, path, other).status, 404u);
        EXPECT_EQ(fetch(hub.port(), method, "/v1/streams/" + std::string(32, '0'), mine).status,
                  404u);
    }
    EXPECT_FALSE(text_of(rest_of(reader)).empty());
}

TEST(ResumableTest, OfOneClientFourRunAndOneThatIsStoppedMakesRoom) {
    TestHub hub;
    const std::string request = post_of(body_of(1500, true));
    std::vector<std::unique_ptr<StreamReader>> readers;
    for (int i = 0; i < 4; ++i) {
        readers.push_back(std::make_unique<StreamReader>(hub.port(), request));
        ASSERT_NE(readers.back()->id(), "");
        readers.back()->close();
    }

    RawClient fifth(hub.port());
    fifth.send(request);
    const RawResponse refused = fifth.read_response(false, 60s);
    EXPECT_EQ(refused.status, 429u);
    EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "too_many_streams");

    const std::string path = "/v1/streams/" + readers[2]->id();
    const RawResponse stopped = fetch(hub.port(), "DELETE", path);
    EXPECT_EQ(stopped.status, 200u);
    EXPECT_EQ(Json::parse(stopped.body)["stopped"], true);
    EXPECT_EQ(fetch(hub.port(), "GET", path).status, 404u);
    EXPECT_TRUE(eventually([&] { return running_now(hub.port()) <= 3; }));

    StreamReader next(hub.port(), request);
    EXPECT_NE(next.id(), "") << next.head();
    for (const auto& reader : readers) fetch(hub.port(), "DELETE", "/v1/streams/" + reader->id());
    fetch(hub.port(), "DELETE", "/v1/streams/" + next.id());
    EXPECT_FALSE(next.head().empty());
    EXPECT_TRUE(eventually([&] { return running_now(hub.port()) == 0; }));
}

TEST(ResumableTest, WhenNobodyComesBackTheSlotIsFree) {
    const auto later = std::make_shared<std::atomic<std::int64_t>>(0);
    TestHubOptions options;
    options.api.resumable.clock = [later] { return now_steady() + std::chrono::seconds(*later); };
    TestHub hub(options);
    StreamReader reader(hub.port(), post_of(body_of(1500, true)));
    const std::string id = reader.id();
    ASSERT_TRUE(reader.next());
    *later = 100;  // a stream with an open connection does not expire
    ASSERT_TRUE(reader.next());

    reader.close();
    ASSERT_TRUE(eventually([&] {
        *later += 61;
        return fetch(hub.port(), "GET", "/v1/streams/" + id).status == 404;
    }));
    EXPECT_TRUE(eventually([&] { return running_now(hub.port()) == 0; }));
}

TEST(ResumableTest, TooLongStreamIsReportedByName) {
    TestHubOptions options;
    options.api.resumable.bytes_max = 2000;
    TestHub hub(options);
    StreamReader reader(hub.port(), post_of(body_of(40, true)));
    const std::vector<Event> events = rest_of(reader);
    const std::string path = "/v1/streams/" + reader.id();
    const RawResponse gone = fetch(hub.port(), "GET", path);
    EXPECT_EQ(gone.status, 410u);
    EXPECT_EQ(Json::parse(gone.body)["error"]["code"], "stream_too_long");

    StreamReader tail(hub.port(), StreamReader::resume(reader.id(), events.back().id - 2));
    EXPECT_EQ(rest_of(tail).size(), 2u);
}

TEST(ResumableTest, UnresumableRequestIsRefusedByName) {
    TestHub hub;
    const std::string type = "Content-Type: application/json\r\n";
    const auto ask = [&](const char* path, Json body) {
        const RawResponse response = fetch(hub.port(), "POST", path, type, body.dump());
        EXPECT_EQ(response.status, 400u) << response.body;
        EXPECT_NE(response.body.find("moex"), std::string::npos) << response.body;
    };
    Json body = body_of(4, true);
    body["stream"] = false;
    ask("/v1/completions", body);
    ask("/v1/completions", {{"prompt", "a"}, {"stream", true}, {"moex", 3}});
    ask("/v1/completions", {{"prompt", "a"}, {"stream", true}, {"moex", {{"resumable", 1}}}});
    ask("/api/generate", {{"model", hub.package().name()},
                          {"prompt", "a"},
                          {"raw", true},
                          {"moex", {{"resumable", true}}}});
}

}  // namespace
}  // namespace moex::net
