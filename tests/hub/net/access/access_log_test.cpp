// Request ids and the access log, as an operator uses them: a user's report has an id, and one line
// of the log has the same id.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "hub/net/access/access_log.h"
#include "hub/net/http/request_id.h"
#include "tests/hub/net/hub_fixture.h"
#include "tests/hub/net/raw_client.h"

namespace moex::net {
namespace {

class AccessLogTest : public testing::Test {
  protected:
    AccessLogTest() {
        std::string pattern = (std::filesystem::temp_directory_path() / "moex-log-XXXXXX").string();
        if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
        folder_ = pattern;
    }
    ~AccessLogTest() override { std::filesystem::remove_all(folder_); }

    std::filesystem::path file() const { return folder_ / "access.log"; }
    static std::string text_of(const std::filesystem::path& path) {
        std::ostringstream all;
        all << std::ifstream(path).rdbuf();
        return all.str();
    }
    // Returns the request's log line; empty if the line is not written in time.
    std::string line_of(const std::string& id) const {
        std::string found;
        eventually([&] {
            std::istringstream lines(text_of(file()));
            for (std::string line; std::getline(lines, line);)
                if (line.find(" id=" + id + " ") != std::string::npos && !lines.eof()) found = line;
            return !found.empty();
        });
        return found;
    }
    std::filesystem::path folder_;
};

TEST(RequestIdTest, AClientsSaneIdIsKeptAnyOtherIsReplaced) {
    const auto id_of = [](std::vector<std::string> given) {
        HttpRequest request;
        for (std::string& id : given) request.headers.emplace_back("x-request-id", std::move(id));
        return request_id_of(request);
    };

    EXPECT_EQ(id_of({"report-7/a"}), "report-7/a");
    EXPECT_EQ(id_of({std::string(128, 'x')}), std::string(128, 'x'));

    for (const std::vector<std::string>& bad :
         std::vector<std::vector<std::string>>{{},
                                               {""},
                                               {"two words"},
                                               {std::string(129, 'x')},
                                               {"tab\there"},
                                               {"caf\xc3\xa9"},
                                               {"one", "another"}}) {
        const std::string id = id_of(bad);
        EXPECT_EQ(id.size(), 28u);
        EXPECT_EQ(id.substr(0, 4), "req-");
        EXPECT_NE(id, id_of(bad));
    }
}

TEST(AccessLineTest, OnlyTheNetworkOfAPeerIsKept) {
    EXPECT_EQ(peer_network("203.0.113.9"), "203.0.113.0/24");
    EXPECT_EQ(peer_network("::ffff:203.0.113.9"), "203.0.113.0/24");
    EXPECT_EQ(peer_network("2001:db8:1:2::3"), "2001:db8:1::/48");
    EXPECT_EQ(peer_network("nonsense"), "-");
}

TEST(AccessLineTest, TheQueryIsCutOff) {
    EXPECT_EQ(access_text({.method = "GET",
                           .raw_target = "/js/chat.js?key=secret",
                           .status = 200,
                           .body_bytes = 12,
                           .took = std::chrono::microseconds(1500),
                           .id = "a",
                           .peer_address = "127.0.0.1"}),
              "method=GET target=/js/chat.js status=200 bytes=12 ms=1.5 end=whole id=a "
              "peer=127.0.0.0/24 key=-");
    EXPECT_EQ(access_text({.status = 400,
                           .whole = false,
                           .id = "b",
                           .peer_address = "::1",
                           .key_id = "1a2b3c4d"}),
              "method=- target=- status=400 bytes=0 ms=0.0 end=cut id=b peer=::/48 key=1a2b3c4d");
}

TEST(AccessLineTest, AsJsonItHasTheSameWords) {
    const auto line = nlohmann::json::parse(access_json({.method = "GET",
                                                         .raw_target = "/a\"b?key=secret",
                                                         .status = 200,
                                                         .took = std::chrono::milliseconds(2),
                                                         .id = "req-1",
                                                         .peer_address = "203.0.113.9"},
                                                        "now"));
    EXPECT_EQ(line, nlohmann::json({{"time", "now"},
                                    {"method", "GET"},
                                    {"target", "/a\"b"},
                                    {"status", 200},
                                    {"bytes", 0},
                                    {"ms", 2.0},
                                    {"end", "whole"},
                                    {"id", "req-1"},
                                    {"peer", "203.0.113.0/24"},
                                    {"key", nullptr}}));
}

TEST_F(AccessLogTest, EveryAnswerHasAnId) {
    TestHub hub;
    const auto id_of = [](const RawResponse& response) {
        const auto id = response.headers.find("x-request-id");
        return id == response.headers.end() ? "" : id->second;
    };

    EXPECT_EQ(id_of(fetch(hub.port(), "GET", "/")).substr(0, 4), "req-");
    EXPECT_EQ(id_of(fetch(hub.port(), "GET", "/nowhere", "X-Request-Id: mine\r\n")), "mine");
    EXPECT_EQ(id_of(fetch(hub.port(), "HEAD", "/api/info", "X-Request-Id: mine\r\n")), "mine");
    EXPECT_EQ(id_of(fetch(hub.port(), "GET", "/", "X-Request-Id: not mine\r\n")).substr(0, 4),
              "req-");

    // Check ids and log lines also for a request with an unreadable head, and for an upgrade.
    RawClient broken(hub.port());
    broken.send("nonsense\r\n\r\n");
    EXPECT_EQ(id_of(broken.read_response()).substr(0, 4), "req-");

    const RawResponse upgraded = fetch(
        hub.port(), "GET", "/worker",
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-Request-Id: w\r\n" +
            hub.bearer());
    EXPECT_EQ(upgraded.status, 101u);
    EXPECT_EQ(id_of(upgraded), "w");
}

TEST_F(AccessLogTest, ALineForEachAnswerWithoutItsContentOrKeys) {
    TestHubOptions options;
    options.server.access_log = file();
    TestHub hub(options);
    fetch(hub.port(), "POST", "/tokenize?token=querysecret",
          "Content-Type: application/json\r\nX-Request-Id: posted\r\n"
          "Authorization: Bearer keysecret\r\n",
          R"({"content": "bodysecret"})");
    fetch(hub.port(), "GET", "/nowhere", "X-Request-Id: missing\r\n");
    RawClient broken(hub.port());
    broken.send("nonsense\r\n\r\n");
    const std::string broken_id = broken.read_response().headers.at("x-request-id");

    const std::string posted = line_of("posted");
    EXPECT_EQ(posted.substr(0, 5), "time=");
    EXPECT_NE(posted.find("Z method=POST target=/tokenize status=200 bytes="), std::string::npos)
        << posted;
    EXPECT_NE(posted.find(" end=whole id=posted peer=127.0.0.0/24"), std::string::npos) << posted;
    EXPECT_NE(line_of("missing").find("method=GET target=/nowhere status=404 "), std::string::npos);
    EXPECT_NE(line_of(broken_id).find("method=- target=- status=400 "), std::string::npos);
    EXPECT_EQ(text_of(file()).find("secret"), std::string::npos);
}

TEST_F(AccessLogTest, AStreamThatAClientLeavesIsCut) {
    TestHubOptions options;
    options.server.access_log = file();
    TestHub hub(options);
    const std::string body = R"({"prompt": "Once", "max_tokens": 2000, "stream": true, )"
                             R"("logit_bias": {"8189": -100, "8191": -100}})";
    {
        RawClient stream(hub.port());
        stream.send(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            "application/json\r\nX-Request-Id: left\r\nContent-Length: " +
            std::to_string(body.size()) + "\r\n\r\n" + body);
        ASSERT_NE(stream.read_until("data: ").find("text/event-stream"), std::string::npos);
    }

    const std::string line = line_of("left");
    EXPECT_NE(line.find("status=200 "), std::string::npos) << line;
    EXPECT_NE(line.find(" end=cut "), std::string::npos) << line;
}

TEST_F(AccessLogTest, ALogThatWasMovedAwayIsOpenedAnew) {
    AccessLog log(file());
    log.write({.status = 200, .id = "old"});
    std::filesystem::rename(file(), folder_ / "moved.log");
    log.reopen();
    log.write({.status = 200, .id = "new"});
    EXPECT_NE(text_of(folder_ / "moved.log").find("id=old"), std::string::npos);
    EXPECT_EQ(text_of(file()).find("id=old"), std::string::npos);
    EXPECT_NE(text_of(file()).find("id=new"), std::string::npos);
    EXPECT_THROW(AccessLog(folder_ / "no" / "folder"), std::runtime_error);
}

}  // namespace
}  // namespace moex::net
