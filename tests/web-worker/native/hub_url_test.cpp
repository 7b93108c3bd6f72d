// Tests of the addresses that `moex-worker --hub` takes.
#include "web-worker/native/hub_url.h"

#include <gtest/gtest.h>

namespace moex::native {
namespace {

TEST(HubUrlTest, PathOfAJoinLinkIsTheHubsPath) {
    struct Row {
        const char *url, *authority, *path, *token;
        bool tls;
    };
    const Row rows[] = {
        {"ws://localhost:8080", "localhost:8080", "", "", false},
        {"wss://hub.example/", "hub.example:443", "", "", true},
        {"wss://hub.example/moex", "hub.example:443", "/moex", "", true},
        {"wss://hub.example:8443/a/b//", "hub.example:8443", "/a/b", "", true},
        {"https://hub.example/moex/join.html#token=t/1", "hub.example:443", "/moex", "t/1", true},
        {"http://[::1]:8080/join.html#token=abc", "[::1]:8080", "", "abc", false},
        {"https://hub.example/moex/?x=/y#token=t", "hub.example:443", "/moex", "t", true},
    };
    for (const Row& row : rows) {
        const auto url = parse_hub_url(row.url);
        ASSERT_TRUE(url.ok()) << row.url;
        EXPECT_EQ(url->authority(), row.authority) << row.url;
        EXPECT_EQ(url->path, row.path) << row.url;
        EXPECT_EQ(url->token, row.token) << row.url;
        EXPECT_EQ(url->tls, row.tls) << row.url;
    }
}

TEST(HubUrlTest, AHubOfAFleetIsNamedInTheTarget) {
    HubUrl url = parse_hub_url("https://hub.example/moex").value();
    EXPECT_EQ(url.worker_target(), "/moex/worker");
    url.hub_id = "0a1b2c3d";
    EXPECT_EQ(url.worker_target(), "/moex/worker?hub=0a1b2c3d");
}

TEST(HubUrlTest, AddressWithoutHostIsRefused) {
    for (const char* bad : {"", "hub.example", "ftp://hub.example", "ws://", "ws:///moex",
                            "ws://hub.example:80x/moex", "wss://:443"})
        EXPECT_FALSE(parse_hub_url(bad).ok()) << bad;
}

}  // namespace
}  // namespace moex::native
