// The operator's routes: their credentials and origins, and the data of the admin page.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hub/net/routes/routes.h"
#include "protocol/messages.h"
#include "tests/hub/net/hub_fixture.h"
#include "tests/hub/net/raw_client.h"

namespace moex::net {
namespace {

using nlohmann::json;

struct Case {
    std::string name, header_lines;
    bool opens = false;
};

class AdminTest : public testing::TestWithParam<bool> {
  protected:
    AdminTest() : hub_(options()) {}
    static TestHubOptions options() {
        TestHubOptions options;
        options.server.require_keys = GetParam();
        options.server.cors_origins = {"https://app.example"};
        return options;
    }
    unsigned ask(const RouteInfo& route, const std::string& header_lines) {
        const bool is_post = route.method == "POST";
        return fetch(hub_.port(), route.method, route.path,
                     header_lines + (is_post ? json_type : ""), is_post ? "{}" : "")
            .status;
    }
    json get(const std::string& path, const std::string& key) {
        return json::parse(fetch(hub_.port(), "GET", path, bearer(key)).body);
    }
    RawResponse post(const std::string& path, const std::string& key, const json& body) {
        return fetch(hub_.port(), "POST", path, bearer(key) + json_type, body.dump());
    }
    std::string make(Role role) { return hub_.registry().create_key(role, "a key").value(); }

    TestHub hub_;
};

// Each of the operator's routes accepts only the admin key as Bearer, from a page of this hub or
// from no page. This holds whether the API requires keys or not (loopback).
TEST_P(AdminTest, OnlyTheAdminKeyAsBearerFromOurOwnPagesOpensTheHostsRoutes) {
    const std::string admin = make(Role::admin);
    const std::vector<Case> keys{
        {"no key", ""},
        {"join", bearer(make(Role::join))},
        {"api", bearer(make(Role::api))},
        {"admin", bearer(admin), true},
        {"admin in X-Api-Key", "X-Api-Key: " + admin + "\r\n"},
        {"admin in a cookie", "Cookie: key=" + admin + "; Authorization=Bearer " + admin + "\r\n"},
        {"wrong", bearer("moex-admin-wrongwrongwrongwrong")}};
    const std::vector<Case> origins{{"none", "", true},
                                    {"same", hub_.page_origin(), true},
                                    {"allowed", "Origin: https://app.example\r\n"},
                                    {"foreign", "Origin: https://evil.example\r\n"},
                                    {"null", "Origin: null\r\n"}};
    std::size_t num_asked = 0;
    for (const RouteInfo& route : server_routes()) {
        if (!route.is_hosts || route.path == "/api/admin/claim") continue;
        for (const Case& key : keys)
            for (const Case& origin : origins) {
                SCOPED_TRACE(route.method + " " + route.path + ", key " + key.name + ", origin " +
                             origin.name);
                const unsigned status = ask(route, key.header_lines + origin.header_lines);
                if (key.opens && origin.opens)
                    EXPECT_TRUE(status == 200 || status == 400) << status;
                else
                    EXPECT_TRUE(status == 401 || status == 403) << status;
                if (!origin.opens) {
                    EXPECT_EQ(status, 403u);
                }
                ++num_asked;
            }
    }
    EXPECT_GE(num_asked, 11 * keys.size() * origins.size());
}

TEST_P(AdminTest, AForeignPageIsRefusedBeforeItsRequest) {
    const auto preflight = [&](const std::string& origin) {
        return fetch(hub_.port(), "OPTIONS", "/api/admin/keys",
                     origin + "Access-Control-Request-Method: POST\r\n")
            .status;
    };
    EXPECT_EQ(preflight("Origin: https://app.example\r\n"), 403u);
    EXPECT_EQ(preflight("Origin: https://evil.example\r\n"), 403u);
    EXPECT_EQ(preflight(hub_.page_origin()), 204u);
    // A page that --cors-origin allows may still call the API.
    EXPECT_EQ(fetch(hub_.port(), "OPTIONS", "/v1/completions",
                    "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n")
                  .status,
              204u);
}

TEST_P(AdminTest, TheOneTimeLinkOpensOnce) {
    const std::string url = hub_.server().make_admin_url();
    const std::string token = url.substr(url.find("#once=") + 6);
    const auto claim = [&](const std::string& header_lines) {
        return fetch(hub_.port(), "POST", "/api/admin/claim", header_lines + json_type, "{}");
    };
    EXPECT_EQ(claim("").status, 401u);
    EXPECT_EQ(claim(bearer(make(Role::admin))).status, 401u);
    EXPECT_EQ(claim(bearer(token) + "Origin: https://app.example\r\n").status, 403u);

    const RawResponse claimed = claim(bearer(token) + hub_.page_origin());
    ASSERT_EQ(claimed.status, 200u);
    const std::string key = json::parse(claimed.body)["key"];
    EXPECT_TRUE(get("/api/admin/keys", key).contains("keys"));
    EXPECT_EQ(claim(bearer(token)).status, 401u);
    // The token of the one-time link is not accepted as a key.
    EXPECT_EQ(fetch(hub_.port(), "GET", "/api/admin/keys", bearer(token)).status, 401u);
    EXPECT_EQ(hub_.registry().key_role(key), Role::admin);
}

TEST_P(AdminTest, KeysAreMadeListedAndRevoked) {
    const std::string admin = make(Role::admin);
    const RawResponse made = post(
        "/api/admin/keys", admin,
        {{"name", "ada"}, {"role", "api"}, {"tokens_per_minute", 500}, {"expires_days", 30}});
    ASSERT_EQ(made.status, 200u) << made.body;
    const json key = json::parse(made.body);
    EXPECT_EQ(hub_.registry().key_role(key["key"].get<std::string>()), Role::api);

    const auto listed = [&] {
        const json all = get("/api/admin/keys", admin);
        for (const json& row : all["keys"])
            if (row["id"] == key["id"]) return row;
        return json();
    };
    EXPECT_EQ(listed()["state"], "open");
    EXPECT_EQ(listed()["tokens_per_minute"], 500);
    EXPECT_FALSE(listed().contains("key"));

    EXPECT_EQ(post("/api/admin/keys/revoke", admin, {{"id", key["id"]}}).status, 200u);
    EXPECT_EQ(listed()["state"], "revoked");
    EXPECT_EQ(post("/api/admin/keys/revoke", admin, {{"id", key["id"]}}).status, 404u);

    for (const json& wrong : {json{{"name", ""}, {"role", "api"}}, json{{"name", "x"}},
                              json{{"name", "x"}, {"role", "king"}},
                              json{{"name", "x"}, {"role", "api"}, {"tokens_per_minute", -1}},
                              json{{"name", "x"}, {"role", "api"}, {"expires_days", 1e9}}})
        EXPECT_EQ(post("/api/admin/keys", admin, wrong).status, 400u) << wrong;
}

TEST_P(AdminTest, TheJoinLinkIsRotated) {
    const std::string admin = make(Role::admin), before = hub_.token();
    EXPECT_EQ(get("/api/admin/join", admin)["url"], hub_.server().join_url());
    const json rotated = json::parse(post("/api/admin/join/rotate", admin, json::object()).body);

    EXPECT_NE(hub_.token(), before);
    EXPECT_EQ(rotated["url"], hub_.server().join_url());
    EXPECT_NE(rotated["url"].get<std::string>().find(hub_.token()), std::string::npos);
    EXPECT_FALSE(hub_.registry().join_allowed(before));
    EXPECT_TRUE(hub_.registry().join_allowed(hub_.token()));
}

// A worker's connection, up to WELCOME or to the refusal of the worker.
struct Lender {
    Lender(TestHub& hub, const std::string& worker_key) : client(hub.port()) {
        Hello hello;
        hello.token = hub.token();
        hello.nickname = "Ada";
        hello.worker_key = worker_key;
        hello.device.budget_bytes = 1 << 30;
        EXPECT_TRUE(client.upgrade(hub.port(), hub.page_origin()));
        client.send_frame(op_binary, std::string(as_text_view(encode_hello(hello))));
        const auto answer = decode_welcome(as_byte_view(client.read_frame().payload));
        if (answer.ok()) id = answer->worker_id;
    }
    RawClient client;
    std::uint64_t id = 0;
};

TEST_P(AdminTest, AWorkerIsDrainedPinnedAndBanned) {
    const std::string admin = make(Role::admin);
    Lender lender(hub_, "a lender's key");
    ASSERT_NE(lender.id, 0u);
    const auto shown = [&](const char* field) {
        const json status = get("/api/status", admin);
        for (const json& worker : status["workers"])
            if (worker["id"] == lender.id) return worker[field];
        return json();
    };
    const auto order = [&](const std::string& what, json body) {
        body["worker"] = lender.id;
        return post("/api/admin/workers/" + what, admin, body);
    };
    EXPECT_EQ(shown("drained"), false);
    for (const char* what : {"drain", "pin"}) {
        const std::string field = what == std::string("drain") ? "drained" : "pinned";
        EXPECT_EQ(order(what, json::object()).status, 200u);
        EXPECT_EQ(shown(field.c_str()), true);
        EXPECT_EQ(order(what, {{"on", false}}).status, 200u);
        EXPECT_EQ(shown(field.c_str()), false);
        EXPECT_EQ(order(what, {{"on", "yes"}}).status, 400u);
        EXPECT_EQ(post(std::string("/api/admin/workers/") + what, admin, {{"worker", 4711}}).status,
                  404u);
    }

    const RawResponse banned = order("ban", {{"days", 2}});
    ASSERT_EQ(banned.status, 200u) << banned.body;
    EXPECT_EQ(json::parse(banned.body)["nickname"], "Ada");
    EXPECT_EQ(lender.client.read_close().close_code(), 1008);
    EXPECT_EQ(Lender(hub_, "a lender's key").id, 0u);
    EXPECT_NE(Lender(hub_, "another's").id, 0u);
    EXPECT_EQ(order("ban", json::object()).status, 404u) << "it has left";

    const json bans = get("/api/admin/bans", admin)["bans"];
    ASSERT_EQ(bans.size(), 1u);
    EXPECT_EQ(bans[0]["until_s"].get<std::int64_t>() - bans[0]["banned_s"].get<std::int64_t>(),
              2 * 86'400);
    EXPECT_EQ(post("/api/admin/bans/lift", admin, {{"worker_key", "nobody's"}}).status, 404u);
    EXPECT_EQ(post("/api/admin/bans/lift", admin, {{"worker_key", "a lender's"}}).status, 200u);
    EXPECT_EQ(get("/api/admin/bans", admin)["bans"].size(), 0u);
    EXPECT_NE(Lender(hub_, "a lender's key").id, 0u);
}

TEST_P(AdminTest, AWorkerWithoutAKeyCannotBeBanned) {
    const std::string admin = make(Role::admin);
    const Lender lender(hub_, "");
    ASSERT_NE(lender.id, 0u);
    const RawResponse refused = post("/api/admin/workers/ban", admin, {{"worker", lender.id}});
    EXPECT_EQ(refused.status, 400u);
    EXPECT_NE(refused.body.find("no key"), std::string::npos) << refused.body;
}

INSTANTIATE_TEST_SUITE_P(KeysAskedFor, AdminTest, testing::Bool());

// In an earlier version every page that --cors-origin allows could read the join link of a hub on
// loopback.
TEST(AdminPagesTest, AForeignPageDoesNotSeeTheJoinLink) {
    TestHubOptions options;
    options.server.cors_origins = {"https://app.example"};
    TestHub hub(options);
    const auto status = [&](const std::string& header_lines) {
        return json::parse(fetch(hub.port(), "GET", "/api/status", header_lines).body);
    };
    EXPECT_TRUE(status("").contains("join_url"));
    EXPECT_TRUE(status(hub.page_origin()).contains("join_url"));
    EXPECT_FALSE(status("Origin: https://app.example\r\n").contains("join_url"));
}

}  // namespace
}  // namespace moex::net
