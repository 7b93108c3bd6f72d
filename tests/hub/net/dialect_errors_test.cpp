// Tests that refusals are in the dialect of the requested route, whichever part of the hub refuses
// the request.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/hub/net/hub_fixture.h"
#include "tests/hub/net/raw_client.h"

namespace moex::net {
namespace {

using Json = nlohmann::json;

struct Row {
    const char* path;
    const char* dialect;
};
constexpr Row rows[] = {{"/v1/chat/completions", "openai"},
                        {"/v1/responses", "openai"},
                        {"/chat/completions", "openai"},
                        {"/v1/messages", "anthropic"},
                        {"/v1/messages/count_tokens", "anthropic"},
                        {"/api/chat", "ollama"},
                        {"/api/generate", "ollama"},
                        {"/api/show", "ollama"}};

void expect_error(const RawResponse& response, unsigned status, const Row& row,
                  const char* openai_type, const char* anthropic_type) {
    SCOPED_TRACE(std::string(row.path) + " " + response.body);
    EXPECT_EQ(response.status, status);
    const Json body = Json::parse(response.body, nullptr, false);
    if (std::string_view(row.dialect) == "ollama") {
        ASSERT_TRUE(body["error"].is_string());
        EXPECT_EQ(body.size(), 1u);
    } else if (std::string_view(row.dialect) == "anthropic") {
        EXPECT_EQ(body["type"], "error");
        EXPECT_EQ(body["error"]["type"], anthropic_type);
    } else {
        EXPECT_EQ(body["error"]["type"], openai_type);
        EXPECT_TRUE(body["error"].contains("code"));
    }
}

TEST(DialectErrorsTest, RefusalsOfTheDoorHaveTheRoutesShape) {
    TestHubOptions options;
    options.server.require_keys = true;
    TestHub hub(options);
    const std::string key = "x-api-key: " + hub.registry().create_key(Role::api, "app").value() +
                            "\r\n";
    const std::uint16_t port = hub.port();

    for (const Row& row : rows) {
        const auto post = [&](const std::string& lines, const std::string& body) {
            return fetch(port, "POST", row.path, lines, body);
        };
        expect_error(post(json_type + "x-api-key: wrong\r\n", "{}"), 401, row,
                     "authentication_error", "authentication_error");
        expect_error(post(json_type + key, "{"), 400, row, "invalid_request_error",
                     "invalid_request_error");
        // Ollama's routes take any type, so the body itself is refused: it names no model.
        const bool is_ollama = std::string_view(row.dialect) == "ollama";
        expect_error(post(key, "{}"), is_ollama ? 400 : 415, row, "invalid_request_error",
                     "invalid_request_error");
        expect_error(post(json_type + key + "Content-Encoding: gzip\r\n", "{}"), 415, row,
                     "invalid_request_error", "invalid_request_error");
        expect_error(fetch(port, "GET", row.path, key), 405, row, "invalid_request_error",
                     "invalid_request_error");
        expect_error(fetch(port, "POST", row.path, json_type + "Host: evil.example\r\n", "{}"), 403,
                     row, "permission_error", "permission_error");
    }
}

TEST(DialectErrorsTest, UnknownPathsHaveTheDialectOfTheirNeighbours) {
    TestHub hub;
    for (const Row& row : {Row{"/v1/messages/batches", "anthropic"}, Row{"/api/copy", "ollama"},
                           Row{"/api/admin/none", "openai"}, Row{"/v1/files", "openai"}})
        expect_error(fetch(hub.port(), "POST", row.path, json_type, "{}"), 404, row,
                     "not_found_error", "not_found_error");
}

TEST(DialectErrorsTest, AnthropicsHeaderGivesAnthropicsErrors) {
    TestHub hub;
    const std::string version = "anthropic-version: 2023-06-01\r\n";
    struct {
        const char *method, *path;
        unsigned status;
        const char* type;
    } const wrong[] = {{"GET", "/v1/files", 404, "not_found_error"},
                       {"POST", "/v1/complete", 404, "not_found_error"},
                       {"POST", "/v1/v1/messages", 404, "not_found_error"},
                       {"POST", "/messages", 404, "not_found_error"},
                       {"DELETE", "/v1/models/x", 405, "invalid_request_error"},
                       {"GET", "/v1/models/x", 404, "not_found_error"},
                       {"GET", "/v1/messages", 405, "invalid_request_error"}};
    for (const auto& one : wrong)
        expect_error(fetch(hub.port(), one.method, one.path, json_type + version, "{}"), one.status,
                     {one.path, "anthropic"}, "", one.type);
    const auto ollama = fetch(hub.port(), "POST", "/api/chat", version, "{");
    EXPECT_TRUE(Json::parse(ollama.body)["error"].is_string()) << ollama.body;
}

// The request gate sees only bytes, and refuses a request before the route is looked up.
TEST(DialectErrorsTest, ABodyThatIsTooLargeIsSaidSo) {
    TestHub hub;
    for (const Row& row : rows) {
        RawClient client(hub.port());
        ASSERT_TRUE(client.send("POST " + std::string(row.path) +
                                " HTTP/1.1\r\nHost: localhost\r\n" + json_type +
                                "Content-Length: 99999999\r\n\r\n"));
        expect_error(client.read_response(), 413, row, "invalid_request_error",
                     "request_too_large");
    }
}

}  // namespace
}  // namespace moex::net
