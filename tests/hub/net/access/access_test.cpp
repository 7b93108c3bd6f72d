// Tests of the rules for Host and Origin, which admit the pages of the hub.
#include "hub/net/access/access.h"

#include <gtest/gtest.h>

namespace moex::net {
namespace {

TEST(AccessTest, HostsOfALoopbackHub) {
    const AccessPolicy policy({"127.0.0.1", {"hub.example"}, {}});
    for (const char* good : {"127.0.0.1", "127.0.0.1:8080", "localhost", "LOCALHOST:8080", "[::1]",
                             "[::1]:8080", "hub.example", "Hub.Example:443"})
        EXPECT_TRUE(policy.host_allowed(good)) << good;

    for (const char* bad : {"evil.example",
                            "localhost.evil.example",
                            "evil-localhost",
                            "hub.example.evil.org",
                            "xhub.example",
                            "192.168.1.5",
                            "10.0.0.1:8080",
                            "0.0.0.0",
                            "",
                            ":8080",
                            "localhost:",
                            "localhost:80a",
                            "localhost:808080",
                            "[::1",
                            "[::1]x",
                            "[fe80::1%25eth0]",
                            "user@localhost",
                            "localhost/x",
                            "127.0.0.1.evil.example",
                            "2130706433"})
        EXPECT_FALSE(policy.host_allowed(bad)) << bad;
}

TEST(AccessTest, HostWithATrailingDotIsThatHost) {
    const AccessPolicy policy({"127.0.0.1", {"hub.example", "other.example."}, {}});
    for (const char* good : {"localhost.", "localhost.:8080", "hub.example.", "Hub.Example.:443",
                             "127.0.0.1.", "other.example", "other.example."})
        EXPECT_TRUE(policy.host_allowed(good)) << good;
    for (const char* bad : {"hub.example..", ".", "..", ":", "evil.example.", "192.168.1.5."})
        EXPECT_FALSE(policy.host_allowed(bad)) << bad;

    HttpRequest request;
    request.headers = {{"host", "hub.example.:8080"}, {"origin", "http://hub.example.:8080"}};
    EXPECT_EQ(policy.judge_origin(request), AccessPolicy::Origin::same);
}

TEST(AccessTest, PortAndPathOfAHostAreIgnored) {
    EXPECT_EQ(host_of_address("Hub.example:8443/moex/"), "hub.example");
    EXPECT_EQ(host_of_address("hub.example./moex"), "hub.example");
    EXPECT_EQ(host_of_address("[2001:db8::1]:8443"), "2001:db8::1");
    EXPECT_EQ(host_of_address("2001:db8::1"), "2001:db8::1");

    const AccessPolicy policy({"127.0.0.1", {"hub.example:8443/moex", "*.example.org/m"}, {}});
    for (const char* good : {"hub.example", "hub.example:8443", "a.example.org"})
        EXPECT_TRUE(policy.host_allowed(good)) << good;
    for (const char* bad : {"moex", "example", "hub.example.moex"})
        EXPECT_FALSE(policy.host_allowed(bad)) << bad;
}

TEST(AccessTest, AWildcardHubAnswersToAddressesButNotToNames) {
    const AccessPolicy policy({"0.0.0.0", {}, {}});
    EXPECT_TRUE(policy.host_allowed("192.168.1.5:8080"));
    EXPECT_TRUE(policy.host_allowed("[2001:db8::1]:8080"));
    EXPECT_FALSE(policy.host_allowed("rebound.example"));
}

TEST(AccessTest, ANameWithAStarStandsForOneLabel) {
    const AccessPolicy policy({"127.0.0.1", {"*.Example.org"}, {}});
    EXPECT_TRUE(policy.host_allowed("hub.example.org:8443"));
    for (const char* bad : {"example.org", ".example.org", "a.b.example.org", "hubexample.org",
                            "hub.example.org.evil.net", "*.evil.net"})
        EXPECT_FALSE(policy.host_allowed(bad)) << bad;
}

TEST(AccessTest, APlainPageIsNotOurOwnOnceTheRequestCameOverTls) {
    const AccessPolicy policy({"127.0.0.1", {"hub.example"}, {}});
    HttpRequest request;
    request.headers = {{"host", "hub.example"}, {"origin", "http://hub.example"}};
    EXPECT_EQ(policy.judge_origin(request), AccessPolicy::Origin::same);
    request.secure = true;
    EXPECT_EQ(policy.judge_origin(request), AccessPolicy::Origin::foreign);
    request.headers[1].second = "https://hub.example";
    EXPECT_EQ(policy.judge_origin(request), AccessPolicy::Origin::same);
}

// A hub without TLS has no page that was sent over TLS. Such a page belongs to another server.
TEST(AccessTest, ATlsPageIsNotThePlainHubsOwn) {
    const AccessPolicy policy({"127.0.0.1", {"hub.example"}, {}});
    HttpRequest request;
    request.headers = {{"host", "hub.example:8080"}, {"origin", "https://hub.example:8080"}};
    EXPECT_EQ(policy.judge_origin(request), AccessPolicy::Origin::foreign);

    request.secure = true;
    EXPECT_EQ(policy.judge_origin(request), AccessPolicy::Origin::same);
}

TEST(AccessTest, OnlyATrustedProxySpeaksForOthers) {
    const TrustedProxies proxies({"127.0.0.1", "10.0.0.2", "2001:DB8::1"});

    const struct {
        const char* peer;
        std::vector<std::pair<std::string, std::string>> headers;
        const char* address;
        bool loopback, secure;
    } rows[] = {
        {"203.0.113.9", {}, "203.0.113.9", false, false},
        // spoofed: not trusted
        {"203.0.113.9",
         {{"x-forwarded-for", "127.0.0.1"}, {"x-forwarded-proto", "https"}},
         "203.0.113.9",
         false,
         false},
        // a client on this machine, but no trusted proxy: its headers are ignored
        {"::1", {{"x-forwarded-for", "198.51.100.7"}}, "::1", true, false},
        {"127.0.0.1",
         {{"x-forwarded-for", "198.51.100.7"}, {"x-forwarded-proto", "https"}},
         "198.51.100.7",
         false,
         true},
        {"::ffff:127.0.0.1", {{"x-forwarded-for", "198.51.100.7"}}, "198.51.100.7", false, false},
        // the client's header claims that it is this machine
        {"127.0.0.1",
         {{"x-forwarded-for", "127.0.0.1, 198.51.100.7"}},
         "198.51.100.7",
         false,
         false},
        {"127.0.0.1", {{"x-forwarded-for", "6.6.6.6, 198.51.100.7"}}, "198.51.100.7", false, false},
        // two trusted proxies in a row
        {"127.0.0.1",
         {{"x-forwarded-for", "198.51.100.7, 10.0.0.2"}},
         "198.51.100.7",
         false,
         false},
        {"127.0.0.1",
         {{"x-forwarded-for", "6.6.6.6"}, {"x-forwarded-for", "198.51.100.7"}},
         "198.51.100.7",
         false,
         false},
        {"127.0.0.1", {{"x-forwarded-for", "[2001:db8::7]:4711"}}, "2001:db8::7", false, false},
        {"127.0.0.1", {{"x-forwarded-for", "198.51.100.7:4711"}}, "198.51.100.7", false, false},
        {"2001:db8::1", {{"x-forwarded-for", "198.51.100.7"}}, "198.51.100.7", false, false},
        {"127.0.0.1", {{"x-forwarded-for", "198.51.100.7, unknown"}}, "127.0.0.1", false, false},
        {"127.0.0.1", {{"x-forwarded-for", ""}}, "127.0.0.1", false, false},
        // a request of a proxy that names no client is never local
        {"127.0.0.1", {}, "127.0.0.1", false, false},
        {"127.0.0.1", {{"x-forwarded-for", "::1"}}, "::1", true, false},
        {"127.0.0.1", {{"x-forwarded-proto", "https, http"}}, "127.0.0.1", false, false},
        {"127.0.0.1", {{"x-forwarded-proto", "http,HTTPS"}}, "127.0.0.1", false, true},
        {"127.0.0.1", {{"x-forwarded-proto", "https, "}}, "127.0.0.1", false, false},
    };
    for (const auto& row : rows) {
        const Client client = proxies.client_of(row.peer, false, row.headers);
        SCOPED_TRACE(testing::Message()
                     << row.peer << ' ' << (row.headers.empty() ? "" : row.headers[0].second));
        EXPECT_EQ(client.address, row.address);
        EXPECT_EQ(client.loopback, row.loopback);
        EXPECT_EQ(client.secure, row.secure);
    }
}

TEST(AccessTest, Origins) {
    const AccessPolicy policy(
        {"127.0.0.1", {"hub.example"}, {"https://app.example", "http://localhost:3000"}});
    using Origin = AccessPolicy::Origin;

    const auto judge = [&](const char* host, const char* origin, bool secure = false) {
        HttpRequest request;
        request.secure = secure;
        request.headers = {{"host", host}, {"origin", origin}};
        return policy.judge_origin(request);
    };

    EXPECT_EQ(judge("127.0.0.1:8080", "http://127.0.0.1:8080"), Origin::same);
    EXPECT_EQ(judge("localhost:8080", "http://LOCALHOST:8080"), Origin::same);
    EXPECT_EQ(judge("hub.example", "https://hub.example", true), Origin::same);
    EXPECT_EQ(judge("hub.example", "https://hub.example:443", true), Origin::same);
    EXPECT_EQ(judge("hub.example:80", "http://hub.example"), Origin::same);
    EXPECT_EQ(judge("[::1]:8080", "http://[::1]:8080"), Origin::same);
    EXPECT_EQ(judge("127.0.0.1:8080", "https://app.example"), Origin::allowed);
    EXPECT_EQ(judge("127.0.0.1:8080", "http://localhost:3000"), Origin::allowed);

    for (const char* bad :
         {"null", "", "http://127.0.0.1:8081", "http://127.0.0.1",
          "http://127.0.0.1:8080.evil.example", "http://evil.example",
          "https://app.example.evil.org", "https://xapp.example", "http://app.example",
          "https://app.example:444", "http://localhost:8080", "file://", "127.0.0.1:8080",
          "http://127.0.0.1:8080/", "http://user@127.0.0.1:8080", "ftp://127.0.0.1:8080",
          "https://app.example http://127.0.0.1:8080"})
        EXPECT_EQ(judge("127.0.0.1:8080", bad), Origin::foreign) << bad;
    HttpRequest twice;
    twice.headers = {{"host", "127.0.0.1:8080"},
                     {"origin", "http://127.0.0.1:8080"},
                     {"origin", "http://evil.example"}};
    EXPECT_EQ(policy.judge_origin(twice), Origin::foreign);

    HttpRequest none;
    none.headers = {{"host", "127.0.0.1:8080"}};
    EXPECT_EQ(policy.judge_origin(none), Origin::none);
}

TEST(AccessTest, KeysAndContentTypes) {
    HttpRequest request;
    request.headers = {{"authorization", "bearer  abc"}};
    EXPECT_EQ(bearer_key(request), "abc");
    request.headers = {{"authorization", "Basic abc"}, {"x-api-key", "abc"}};
    EXPECT_EQ(bearer_key(request), std::nullopt);
    request.headers = {{"x-api-key", "abc"}};
    EXPECT_EQ(bearer_key(request), "abc");
    EXPECT_TRUE(is_json_content_type("application/json"));
    EXPECT_TRUE(is_json_content_type("Application/JSON ; charset=utf-8"));
    EXPECT_FALSE(is_json_content_type("text/plain"));
    EXPECT_FALSE(is_json_content_type("application/jsonx"));
    EXPECT_FALSE(is_json_content_type(""));
}

}  // namespace
}  // namespace moex::net
