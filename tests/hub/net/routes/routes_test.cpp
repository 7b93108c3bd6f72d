// Tests of the route table over HTTP: routes that are open without a key, credentials of all other
// routes, and headers of pages and blobs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>

#include <nlohmann/json.hpp>

#include "hub/base/sha256.h"
#include "hub/base/signing_key.h"
#include "hub/net/routes/routes.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/hub/net/hub_fixture.h"
#include "tests/hub/net/raw_client.h"
#include "tests/support/must.h"
#include "tests/support/repository.h"

namespace moex::net {
namespace {

const std::string json_type = "Content-Type: application/json\r\n";

std::string example_of(const RouteInfo& route, const ModelPackage& package) {
    if (route.path == "/*") return "/favicon.svg";
    if (route.path == "/api/history") return "/api/history?span=24h";
    if (route.path == "/weights/*") return "/weights/" + to_hex(package.blob_hash(0, 0));
    if (route.path == "/api/package/*") return "/api/package/" + package.manifest_sha256();
    if (route.path == "/v1/models/*") return "/v1/models/" + package.name();
    return route.path;
}

// A hub off loopback: without a key public routes answer, and all other routes return 401. With a
// key of a lesser role, all other routes return 403.
TEST(RoutesTest, AWalkOverTheTableShowsWhatIsOpenWithoutAKey) {
    TestHubOptions options;
    options.server.require_keys = true;
    options.server.test_routes = true;
    TestHub hub(options);
    const std::string api = "Authorization: Bearer " +
                            hub.registry().create_key(Role::api, "app").value() + "\r\n";
    const std::string admin = "X-Api-Key: " +
                              hub.registry().create_key(Role::admin, "host").value() + "\r\n";
    const std::string wrong = "Authorization: Bearer moex-api-wrongwrongwrongwrong\r\n";
    std::vector<std::string> open;

    for (const RouteInfo& route : server_routes()) {
        const std::string path = example_of(route, hub.package());
        SCOPED_TRACE(route.method + " " + path);
        const bool takes_bytes = route.path == "/v1/pages/*";
        const std::string type = route.method != "POST" ? ""
                                 : takes_bytes ? "Content-Type: application/octet-stream\r\n"
                                               : json_type;
        const std::string body = route.method == "POST" ? "{}" : "";
        const unsigned without = fetch(hub.port(), route.method, path, type, body).status;
        if (route.path == "/worker") {
            EXPECT_EQ(without, 426u);  // /worker needs a join token; see hostile_worker_test
            continue;
        }
        if (route.is_hosts) {
            EXPECT_EQ(without, 401u);  // see admin_test
            continue;
        }
        if (route.is_join) {
            EXPECT_EQ(without, 401u);  // see contributors_test
            continue;
        }
        if (route.is_public) {
            EXPECT_EQ(without, 200u);
            open.push_back(route.path);
            continue;
        }
        EXPECT_EQ(without, 401u);
        EXPECT_EQ(fetch(hub.port(), route.method, path, type + wrong, body).status, 401u);
        // the join token gives no access to the API
        EXPECT_EQ(fetch(hub.port(), route.method, path, type + hub.bearer(), body).status, 401u);
        const unsigned with_admin =
            fetch(hub.port(), route.method, path, type + admin, body).status;
        // nobody's stream
        const bool is_missing = route.path == "/v1/streams/*" && with_admin == 404;
        // a hub that takes no pages of clients
        const bool has_none = route.path.starts_with("/v1/pages") && with_admin == 501;
        EXPECT_TRUE(with_admin == 200 || with_admin == 400 || is_missing || has_none) << with_admin;
        const unsigned with_api = fetch(hub.port(), route.method, path, type + api, body).status;
        const bool admin_only = route.path == "/metrics" || route.path == "/api/test";
        EXPECT_EQ(with_api == 403, admin_only) << with_api;
    }
    EXPECT_EQ(open, (std::vector<std::string>{"/", "/*", "/weights/*", "/health", "/v1/health",
                                              "/api/info", "/api/signature", "/api/manifest",
                                              "/openapi.json", "/v1/models", "/v1/models/*",
                                              "/models", "/api/ps", "/api/tags", "/api/version"}));
}

TEST(RoutesTest, PathOutsideTheTableIs404) {
    TestHub hub;
    for (const char* path : {"/nowhere",
                             "/api",
                             "/api/test",
                             "/v1",
                             "/static/models/demo/manifest.json",
                             "/models/demo/manifest.json",
                             "/../etc/passwd",
                             "/..%2f..%2fetc%2fpasswd",
                             "/js/../index.html",
                             "/js/",
                             "/css",
                             "/weights/",
                             "/weights/abc",
                             "/v1/models/",
                             "/weights/../manifest.json",
                             "/index.html/",
                             "//",
                             "/\\..\\x",
                             "/%2e%2e/",
                             "/moex.sqlite"}) {
        const RawResponse response = fetch(hub.port(), "GET", path);
        EXPECT_EQ(response.status, 404u) << path;
        EXPECT_EQ(nlohmann::json::parse(response.body)["error"]["type"], "not_found_error") << path;
    }
}

TEST(RoutesTest, APathThatMissesTheTableByALittleIsToldTheRightOne) {
    TestHub hub;

    const struct {
        const char* method;
        const char* path;
        const char* meant;
    } rows[] = {{"POST", "/messages", "/v1/messages"},
                {"POST", "/v1/v1/chat/completions", "/v1/chat/completions"},
                {"POST", "/v1/completions/", "/v1/completions"},
                {"GET", "/models/", "/models"},
                {"GET", "/v1/metrics", "/metrics"},
                {"GET", "/health/", "/health"}};

    for (const auto& row : rows) {
        const RawResponse response = fetch(hub.port(), row.method, row.path, json_type, "{}");
        EXPECT_EQ(response.status, 404u) << row.path;
        EXPECT_NE(response.body.find(std::string("did you mean ") + row.meant + "?"),
                  std::string::npos)
            << response.body;
    }

    EXPECT_EQ(fetch(hub.port(), "GET", "/nowhere").body.find("did you mean"), std::string::npos);
}

TEST(RoutesTest, WrongMethodsAreNamed) {
    TestHub hub;
    for (const char* method : {"PUT", "DELETE", "PATCH", "POST"}) {
        const RawResponse response = fetch(hub.port(), method, "/api/info", json_type, "{}");
        EXPECT_EQ(response.status, 405u) << method;
        EXPECT_EQ(response.headers.at("allow"), "GET, HEAD, OPTIONS");
    }
    const RawResponse response = fetch(hub.port(), "GET", "/v1/chat/completions");
    EXPECT_EQ(response.status, 405u);
    EXPECT_EQ(response.headers.at("allow"), "POST, OPTIONS");
    EXPECT_EQ(fetch(hub.port(), "HEAD", "/api/info").status, 200u);
}

TEST(RoutesTest, PostsMustBeJson) {
    TestHub hub;
    EXPECT_EQ(fetch(hub.port(), "POST", "/tokenize", "", "{}").status, 415u);
    EXPECT_EQ(fetch(hub.port(), "POST", "/tokenize", "Content-Type: text/plain\r\n", "{}").status,
              415u);
    EXPECT_EQ(fetch(hub.port(), "POST", "/tokenize",
                    "Content-Type: application/x-www-form-urlencoded\r\n", "{}")
                  .status,
              415u);
}

// Ollama's documentation sends its bodies without a type, which a form of any page can do as well.
TEST(RoutesTest, NoRouteTakesABodyFromAForeignPage) {
    TestHubOptions options;
    options.server.cors_origins = {"https://app.example"};
    TestHub hub(options);
    const auto status = [&](const std::string& path, const std::string& lines) {
        return fetch(hub.port(), "POST", path, lines, "{}").status;
    };
    const std::string site = "Sec-Fetch-Site: ";
    for (const RouteInfo& route : server_routes()) {
        if (route.method != std::string("POST")) continue;
        const std::string path(route.path);
        HttpRequest request;
        request.path = path;
        const bool is_ollama = dialect_of(request) == Dialect::ollama;
        for (const std::string type : {"", "Content-Type: text/plain\r\n",
                                       "Content-Type: application/x-www-form-urlencoded\r\n"}) {
            EXPECT_EQ(status(path, type + "Origin: https://evil.example\r\n"), 403u) << path;
            EXPECT_EQ(status(path, type + "Origin: null\r\n"), 403u) << path;
            for (const char* from : {"cross-site\r\n", "same-site\r\n"})
                EXPECT_GE(status(path, type + site + from), is_ollama ? 403u : 401u) << path;
            if (!is_ollama) continue;
            EXPECT_EQ(status(path, type + site + "cross-site\r\n"), 403u) << path;
            EXPECT_EQ(status(path, type + site + "same-site\r\n"), 403u) << path;
            EXPECT_EQ(status(path, type), 400u) << path << " names no model";
            EXPECT_EQ(status(path, type + site + "same-origin\r\n"), 400u) << path;
            EXPECT_EQ(status(path, type + site + "cross-site\r\nOrigin: https://app.example\r\n"),
                      400u)
                << path << ": the operator allows this origin";
        }
    }
}

TEST(RoutesTest, OllamasFurtherRoutesAnswer) {
    TestHub hub;
    const auto loaded = fetch(hub.port(), "GET", "/api/ps");
    EXPECT_EQ(loaded.status, 200u);
    const auto model = nlohmann::json::parse(loaded.body)["models"][0];
    EXPECT_TRUE(model["expires_at"].is_string());
    EXPECT_GT(model["context_length"], 0);
    const std::string name = model["name"];
    const auto embedded = fetch(hub.port(), "POST", "/api/embeddings", "",
                                nlohmann::json{{"model", name}, {"prompt", "a sea"}}.dump());
    EXPECT_EQ(embedded.status, 200u) << embedded.body;
    EXPECT_GT(nlohmann::json::parse(embedded.body)["embedding"].size(), 8u);
    EXPECT_EQ(fetch(hub.port(), "HEAD", "/").status, 200u);

    const auto models = fetch(hub.port(), "GET", "/v1/models", "anthropic-version: 2023-06-01\r\n");
    EXPECT_EQ(nlohmann::json::parse(models.body)["data"][0]["type"], "model");
    EXPECT_EQ(nlohmann::json::parse(models.body)["has_more"], false);
}

// RFC 9112, 3.2.2: a server accepts the absolute form, and its authority replaces the Host.
TEST(RoutesTest, AbsoluteTargetCountsAsTheHost) {
    TestHub hub;
    const auto status = [&](const std::string& head) {
        RawClient client(hub.port());
        EXPECT_TRUE(client.send(head + "\r\n"));
        return client.read_response().status;
    };
    const std::string host = "Host: localhost\r\n";
    EXPECT_EQ(status("GET http://localhost/api/version HTTP/1.1\r\n" + host), 200u);
    EXPECT_EQ(status("GET http://127.0.0.1/api/version HTTP/1.1\r\n"), 200u);
    EXPECT_EQ(status("GET http://evil.example/api/version HTTP/1.1\r\n" + host), 403u);
    EXPECT_EQ(status("GET http://a@evil.example/api/version HTTP/1.1\r\n" + host), 403u);
    EXPECT_EQ(status("GET /api/version HTTP/1.0\r\n"), 200u) << "a check of a load balancer";
}

TEST(RoutesTest, ForeignHostsAndOriginsAreRefused) {
    TestHubOptions options;
    options.server.cors_origins = {"https://app.example"};
    TestHub hub(options);
    const std::string own = "http://127.0.0.1:" + std::to_string(hub.port());
    EXPECT_EQ(fetch(hub.port(), "GET", "/api/info", "Host: rebound.example\r\n").status, 403u);
    EXPECT_EQ(fetch(hub.port(), "GET", "/", "Host: localhost.rebound.example\r\n").status, 403u);
    EXPECT_EQ(fetch(hub.port(), "GET", "/api/info", "Host: localhost\r\n").status, 200u);

    for (const char* origin :
         {"null", "http://evil.example", "https://app.example.evil.org", "http://127.0.0.1"}) {
        EXPECT_EQ(
            fetch(hub.port(), "GET", "/api/info", "Origin: " + std::string(origin) + "\r\n").status,
            403u)
            << origin;
        EXPECT_EQ(fetch(hub.port(), "OPTIONS", "/v1/chat/completions",
                        "Origin: " + std::string(origin) + "\r\n")
                      .status,
                  403u)
            << origin;
    }

    EXPECT_EQ(fetch(hub.port(), "GET", "/api/info", "Origin: " + own + "\r\n").status, 200u);

    const RawResponse allowed = fetch(hub.port(), "GET", "/api/info",
                                      "Origin: https://app.example\r\n");
    EXPECT_EQ(allowed.status, 200u);
    EXPECT_EQ(allowed.headers.at("access-control-allow-origin"), "https://app.example");
    EXPECT_EQ(allowed.headers.at("vary"), "Origin");

    const RawResponse preflight = fetch(
        hub.port(), "OPTIONS", "/v1/chat/completions",
        "Origin: https://app.example\r\nAccess-Control-Request-Method: "
        "POST\r\nAccess-Control-Request-Headers: authorization,x-stainless-helper-method\r\n");
    EXPECT_EQ(preflight.status, 204u);
    EXPECT_NE(preflight.headers.at("access-control-allow-methods").find("POST"), std::string::npos);
    EXPECT_NE(preflight.headers.at("access-control-allow-headers")
                  .find("authorization,x-stainless-helper-method"),
              std::string::npos);
}

TEST(RoutesTest, PagesCarryTheirHeaders) {
    TestHub hub;

    for (const char* path : {"/", "/join.html", "/status.html", "/favicon.svg"}) {
        SCOPED_TRACE(path);
        const RawResponse page = fetch(hub.port(), "GET", path);
        ASSERT_EQ(page.status, 200u);
        EXPECT_FALSE(page.body.empty());
        EXPECT_EQ(page.headers.at("content-security-policy"),
                  "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; "
                  "connect-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
                  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
        EXPECT_EQ(page.headers.at("cross-origin-opener-policy"), "same-origin");
        EXPECT_EQ(page.headers.at("cross-origin-embedder-policy"), "require-corp");
        EXPECT_EQ(page.headers.at("cross-origin-resource-policy"), "same-origin");
        EXPECT_EQ(page.headers.at("x-content-type-options"), "nosniff");
        EXPECT_EQ(page.headers.at("referrer-policy"), "no-referrer");
        const RawResponse again = fetch(hub.port(), "GET", path,
                                        "If-None-Match: " + page.headers.at("etag") + "\r\n");
        EXPECT_EQ(again.status, 304u);
        EXPECT_EQ(fetch(hub.port(), "HEAD", path).headers.at("content-length"),
                  std::to_string(page.body.size()));
    }
}

TEST(RoutesTest, PagesComeInTheCodingThatTheirClientTakesEachWithATagOfItsOwn) {
    TestHub hub;
    const std::string path = "/js/chat.js";
    const auto get = [&](const std::string& accepts, const std::string& more = "") {
        return fetch(hub.port(), "GET", path, "Accept-Encoding: " + accepts + "\r\n" + more);
    };
    const RawResponse plain = fetch(hub.port(), "GET", path), brotli = get("gzip, deflate, br"),
                      zipped = get("gzip");
    EXPECT_FALSE(plain.headers.contains("content-encoding"));
    EXPECT_EQ(brotli.headers.at("content-encoding"), "br");
    EXPECT_EQ(zipped.headers.at("content-encoding"), "gzip");
    EXPECT_EQ(zipped.body.substr(0, 2), "\x1f\x8b");
    EXPECT_LT(brotli.body.size(), zipped.body.size());
    EXPECT_LT(zipped.body.size(), plain.body.size() / 2);

    std::set<std::string> tags;
    for (const RawResponse& one : {plain, brotli, zipped}) {
        EXPECT_EQ(one.status, 200u);
        EXPECT_EQ(one.headers.at("vary"), "Accept-Encoding");
        EXPECT_EQ(one.headers.at("content-type"), "text/javascript; charset=utf-8");
        EXPECT_EQ(one.headers.at("content-length"), std::to_string(one.body.size()));
        tags.insert(one.headers.at("etag"));
    }
    EXPECT_EQ(tags.size(), 3u);

    const std::string has_brotli = "If-None-Match: " + brotli.headers.at("etag") + "\r\n";
    const RawResponse again = get("br", has_brotli);
    EXPECT_EQ(again.status, 304u);
    EXPECT_EQ(again.headers.at("vary"), "Accept-Encoding");
    EXPECT_EQ(again.headers.at("etag"), brotli.headers.at("etag"));
    EXPECT_EQ(get("gzip", has_brotli).status, 200u);
    EXPECT_EQ(fetch(hub.port(), "GET", path, has_brotli).status, 200u);
    EXPECT_EQ(
        fetch(hub.port(), "HEAD", path, "Accept-Encoding: br\r\n").headers.at("content-length"),
        std::to_string(brotli.body.size()));
}

TEST(RoutesTest, BlobsComeWholeInPartsAndUnderConditions) {
    TestHub hub;
    const Sha256 hash = hub.package().blob_hash(0, 0);
    const std::string path = "/weights/" + to_hex(hash), etag = "\"" + to_hex(hash) + "\"";
    const RawResponse whole = fetch(hub.port(), "GET", path);
    ASSERT_EQ(whole.status, 200u);
    EXPECT_EQ(whole.body.size(), hub.package().expert_blob_bytes());
    EXPECT_EQ(sha256(as_byte_view(whole.body)), hash);
    EXPECT_EQ(whole.headers.at("etag"), etag);
    EXPECT_EQ(whole.headers.at("cache-control"), "public, max-age=31536000, immutable");
    EXPECT_EQ(whole.headers.at("accept-ranges"), "bytes");
    EXPECT_EQ(whole.headers.at("cross-origin-resource-policy"), "same-origin");

    const std::string size = std::to_string(whole.body.size());
    const RawResponse part = fetch(hub.port(), "GET", path,
                                   "Range: bytes=100-299\r\nIf-Range: " + etag + "\r\n");
    EXPECT_EQ(part.status, 206u);
    EXPECT_EQ(part.headers.at("content-range"), "bytes 100-299/" + size);
    EXPECT_EQ(part.body, whole.body.substr(100, 200));

    const RawResponse beyond = fetch(hub.port(), "GET", path, "Range: bytes=" + size + "-\r\n");
    EXPECT_EQ(beyond.status, 416u);
    EXPECT_EQ(beyond.headers.at("content-range"), "bytes */" + size);
    EXPECT_EQ(
        fetch(hub.port(), "GET", path, "Range: bytes=0-1\r\nIf-Range: \"old\"\r\n").body.size(),
        whole.body.size());
    EXPECT_EQ(fetch(hub.port(), "GET", path, "If-None-Match: " + etag + "\r\n").status, 304u);

    const RawResponse head = fetch(hub.port(), "HEAD", path);
    EXPECT_EQ(head.status, 200u);
    EXPECT_EQ(head.headers.at("content-length"), size);
    EXPECT_EQ(fetch(hub.port(), "GET", "/weights/" + std::string(64, '0')).status, 404u);
}

TEST(RoutesTest, ThePackageComesFileByFile) {
    TestHub hub;
    const nlohmann::json list = nlohmann::json::parse(
        fetch(hub.port(), "GET", "/api/package").body);
    EXPECT_EQ(list["name"], hub.package().name());
    EXPECT_EQ(list["sha256"], hub.package().manifest_sha256());

    std::uint64_t all_bytes = 0;
    std::vector<std::string> names;
    for (const nlohmann::json& file : list["files"]) {
        const std::string hash = file["sha256"];
        SCOPED_TRACE(file["name"]);
        const RawResponse whole = fetch(hub.port(), "GET", "/api/package/" + hash);
        ASSERT_EQ(whole.status, 200u);
        EXPECT_EQ(to_hex(sha256(as_byte_view(whole.body))), hash);
        EXPECT_EQ(whole.body.size(), file["bytes"]);
        EXPECT_EQ(whole.headers.at("cache-control"), "private, max-age=31536000, immutable");
        all_bytes += whole.body.size();
        names.push_back(file["name"]);
    }
    EXPECT_EQ(list["bytes"], all_bytes);
    ASSERT_GE(names.size(), 2u + hub.package().num_blobs());
    EXPECT_EQ(names[0], "manifest.json");
    EXPECT_EQ(names[1], "hub.safetensors");
    for (const char* const side : {"default_vectors.safetensors", "estimator.safetensors"})
        EXPECT_EQ(std::count(names.begin(), names.end(), side), 1) << side;

    const std::string hub_file = list["files"][1]["sha256"];
    const RawResponse part = fetch(hub.port(), "GET", "/api/package/" + hub_file,
                                   "Range: bytes=8-15\r\n");
    EXPECT_EQ(part.status, 206u);
    EXPECT_EQ(part.body.size(), 8u);
    for (const std::string& other : {std::string(64, '0'), std::string("manifest.json")})
        EXPECT_EQ(fetch(hub.port(), "GET", "/api/package/" + other).status, 404u);
    EXPECT_EQ(fetch(hub.port(), "GET", "/weights/" + hub_file).status, 404u);
    EXPECT_TRUE(nlohmann::json::parse(fetch(hub.port(), "GET", "/api/info").body)["gives_model"]);
}

struct PackageFolder {
    PackageFolder() { std::filesystem::remove_all(path); }
    ~PackageFolder() { std::filesystem::remove_all(path); }
    const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                       text("moex-with-head-", static_cast<long>(::getpid()));
};

// The demo with a package in draft_head/. Only Decoder::draft_head() asks if it is a head.
TEST(RoutesTest, PackageIsGivenWithItsDraftHead) {
    namespace fs = std::filesystem;
    const PackageFolder folder;
    const fs::path demo = repository() / "static/models/demo";
    fs::copy(demo, folder.path, fs::copy_options::recursive);
    fs::copy(demo, folder.path / "draft_head", fs::copy_options::recursive);
    nlohmann::json manifest = nlohmann::json::parse(std::ifstream(folder.path / "manifest.json"));
    manifest["draft_head"] = {{"sha256", to_hex(sha256_file(demo / "manifest.json").value())},
                              {"bytes", fs::file_size(demo / "manifest.json")}};
    std::ofstream(folder.path / "manifest.json") << manifest.dump();

    TestHubOptions options;
    options.package = folder.path;
    TestHub hub(options);
    std::set<std::string> names;
    const nlohmann::json list = nlohmann::json::parse(
        fetch(hub.port(), "GET", "/api/package").body);
    for (const nlohmann::json& file : list["files"]) {
        const std::string hash = file["sha256"], name = file["name"];
        const std::string body = fetch(hub.port(), "GET", "/api/package/" + hash).body;
        EXPECT_EQ(to_hex(sha256(as_byte_view(body))), hash) << name;
        EXPECT_EQ(to_hex(sha256_file(folder.path / name).value()), hash) << name;
        names.insert(name);
    }
    // all files of the folder but losses.json, which no manifest names
    for (const auto& entry : fs::recursive_directory_iterator(folder.path)) {
        const std::string name = fs::relative(entry.path(), folder.path).string();
        if (entry.is_regular_file() && !name.ends_with("losses.json"))
            EXPECT_EQ(names.erase(name), 1u) << name;
    }
    EXPECT_TRUE(names.empty());
}

// With --device-model, browsers load another package than the one that is served. The hub signs it.
TEST(RoutesTest, BrowsersMayLoadAnotherPackage) {
    // The demo's package under another name: the manifest is another one.
    const test::TemporaryFolder folder("device-model");
    const std::filesystem::path demo = repository() / "static/models/demo";
    std::filesystem::copy(demo, folder.path(), std::filesystem::copy_options::recursive);
    std::ifstream in(demo / "manifest.json");
    nlohmann::ordered_json manifest = nlohmann::ordered_json::parse(in);
    manifest["name"] = "small";
    std::ofstream(folder.path() / "manifest.json", std::ios::trunc) << manifest.dump(1);

    TestHubOptions options;
    options.server.device_package = test::must(ModelPackage::open(folder.path()));
    const ModelPackage& small = *options.server.device_package;
    TestHub hub(options);
    const nlohmann::json list = nlohmann::json::parse(
        fetch(hub.port(), "GET", "/api/package").body);
    EXPECT_EQ(list["name"], "small");
    EXPECT_EQ(list["sha256"], small.manifest_sha256());
    EXPECT_EQ(list["signed"]["sha256"], small.manifest_sha256());

    nlohmann::json signature = nlohmann::json::parse(
        fetch(hub.port(), "GET", "/api/signature").body);
    EXPECT_EQ(signature["manifest"]["sha256"], hub.package().manifest_sha256());
    signature["manifest"] = list["signed"];
    const auto of_small = parse_signed_manifest(signature.dump(), "list");
    ASSERT_TRUE(of_small.ok()) << of_small.error().message;
    EXPECT_TRUE(check_signature(*of_small, signature_fits).ok());

    for (const nlohmann::json& file : list["files"]) {
        const std::string hash = file["sha256"];
        const RawResponse whole = fetch(hub.port(), "GET", "/api/package/" + hash);
        ASSERT_EQ(whole.status, 200u) << file["name"];
        EXPECT_EQ(to_hex(sha256(as_byte_view(whole.body))), hash);
    }
    const std::string served = "/api/package/" + hub.package().manifest_sha256();
    EXPECT_EQ(fetch(hub.port(), "GET", served).status, 404u);
    const nlohmann::json info = nlohmann::json::parse(fetch(hub.port(), "GET", "/api/info").body);
    EXPECT_EQ(info["model"], hub.package().name());
    EXPECT_EQ(info["device_model"], "small");
}

TEST(RoutesTest, SignatureCoversManifestAndPages) {
    TestHub hub;
    const RawResponse manifest = fetch(hub.port(), "GET", "/api/manifest");
    EXPECT_EQ(to_hex(sha256(as_byte_view(manifest.body))), hub.package().manifest_sha256());
    EXPECT_EQ(fetch(hub.port(), "GET", "/api/manifest",
                    "If-None-Match: " + manifest.headers.at("etag") + "\r\n")
                  .status,
              304u);

    const RawResponse answer = fetch(hub.port(), "GET", "/api/signature");
    const auto signature = parse_signed_manifest(answer.body, "answer");
    ASSERT_TRUE(signature.ok()) << signature.error().message;
    EXPECT_TRUE(check_signature(*signature, signature_fits).ok());
    EXPECT_EQ(to_hex(signature->sha256), hub.package().manifest_sha256());
    EXPECT_EQ(signature->size_bytes, manifest.body.size());

    const nlohmann::json body = nlohmann::json::parse(answer.body);
    const std::string lines = body["pages"]["lines"];
    const auto of_pages = parse_signature(body["pages"]["signature"].get<std::string>());
    ASSERT_TRUE(of_pages.ok());
    EXPECT_TRUE(signature_fits(signature->key, *of_pages, pages_text(lines)));
    for (const std::string path : {"/index.html", "/js/join.js", "/service_worker.js"}) {
        const RawResponse page = fetch(hub.port(), "GET", path);
        const std::string line = path + " " + to_hex(sha256(as_byte_view(page.body))) + "\n";
        EXPECT_NE(lines.find(line), std::string::npos) << path;
    }
}

TEST(RoutesTest, AHubMayKeepItsModelToItself) {
    TestHubOptions options;
    options.server.give_model = false;
    TestHub hub(options);
    EXPECT_FALSE(nlohmann::json::parse(fetch(hub.port(), "GET", "/api/info").body)["gives_model"]);
    const std::string manifest = "/api/package/" + hub.package().manifest_sha256();
    for (const std::string& path : {std::string("/api/package"), manifest}) {
        const RawResponse refused = fetch(hub.port(), "GET", path);
        EXPECT_EQ(refused.status, 404u);
        EXPECT_EQ(nlohmann::json::parse(refused.body)["error"]["code"], "model_not_given");
    }
}

TEST(RoutesTest, StatusHealthInfoAndMetrics) {
    TestHub hub;
    const auto health = nlohmann::json::parse(fetch(hub.port(), "GET", "/health").body);
    EXPECT_EQ(health["status"], "ok");

    const auto info = nlohmann::json::parse(fetch(hub.port(), "GET", "/api/info").body);
    EXPECT_EQ(info["model"], hub.package().name());
    EXPECT_EQ(info["api_key_required"], false);

    const auto status = nlohmann::json::parse(fetch(hub.port(), "GET", "/api/status").body);
    for (const char* key : {"version", "uptime_s", "model", "options", "health", "coverage",
                            "replicas", "engine", "calls", "workers", "join_url"})
        EXPECT_TRUE(status.contains(key)) << key;
    EXPECT_EQ(status["replicas"].size(), hub.package().config().num_layers);
    EXPECT_NE(status["join_url"].get<std::string>().find("#token=" + hub.token()),
              std::string::npos);

    const RawResponse metrics = fetch(hub.port(), "GET", "/metrics");
    EXPECT_EQ(metrics.status, 200u);

    for (const char* name : {"moex_num_requests_running",
                             "moex_num_requests_waiting",
                             "moex_kv_memory_bytes{part=\"states\"} 0",
                             "moex_kv_memory_bytes_max{part=\"pages\"} ",
                             "moex_prompt_tokens_total",
                             "moex_generation_tokens_total",
                             "moex_request_success_total",
                             "moex_time_to_first_token_seconds_bucket",
                             "moex_inter_token_latency_seconds_count",
                             "moex_e2e_request_latency_seconds_sum",
                             "moex_request_queue_time_seconds_bucket",
                             "moex_workers",
                             "moex_calls_total",
                             "moex_call_latency_seconds",
                             "moex_hedges_total",
                             "moex_verify_total",
                             "moex_ejections_total",
                             "moex_fallback_total",
                             "moex_wire_bytes_total",
                             "moex_expert_replicas",
                             "moex_request_success_total{finished_reason=\"abort\"} 0",
                             "moex_worker_events_total{event=\"removed\"} 0",
                             "moex_ejections_total{reason=\"bad_frame\"} 0"})
        EXPECT_NE(metrics.body.find(name), std::string::npos) << name;
}

TEST(RoutesTest, HealthSaysWhenAnExpertHasNoAnswerer) {
    TestHubOptions options;
    options.swarm.local_fallback = false;
    TestHub hub(options);
    const RawResponse response = fetch(hub.port(), "GET", "/health");
    EXPECT_EQ(response.status, 503u);
    EXPECT_EQ(nlohmann::json::parse(response.body)["status"], "uncovered");
}

// In an earlier version long texts from one client delayed all clients, because the socket threads
// read them.
TEST(RoutesTest, TextsAreReadByThePoolOfTextsAlone) {
    TestHubOptions options;
    options.api.texts.jobs_per_client_max = 0;
    TestHub hub(options);

    for (const auto& [path, body] :
         {std::pair{"/tokenize", R"({"content": "a"})"},
          std::pair{"/detokenize", R"({"tokens": [1]})"},
          std::pair{"/v1/completions", R"({"prompt": "a", "max_tokens": 1})"},
          std::pair{"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}]})"},
          std::pair{"/v1/embeddings", R"({"input": "a"})"}}) {
        SCOPED_TRACE(path);
        const RawResponse refused = fetch(hub.port(), "POST", path, json_type, body);
        EXPECT_EQ(refused.status, 429u);
        EXPECT_NE(refused.body.find("text_queue_full"), std::string::npos) << refused.body;
        EXPECT_TRUE(refused.headers.contains("retry-after"));
    }
    EXPECT_EQ(fetch(hub.port(), "GET", "/v1/models").status, 200u);
}

// In an earlier version /health and the swarm ran on one strand: /health waited for the swarm, and
// the swarm waited for a flood of /health requests.
TEST(RoutesTest, HealthIsToldWhileTheSwarmIsBusy) {
    TestHub hub;
    ASSERT_TRUE(eventually([&] { return hub.healthy(); }));
    std::promise<void> begun, let_go;
    hub.server().swarm_host().post([&] {
        begun.set_value();
        let_go.get_future().wait();
    });
    begun.get_future().wait();

    EXPECT_EQ(fetch(hub.port(), "GET", "/health").status, 200u);
    let_go.set_value();
}

TEST(RoutesTest, AnOpenAddressWantsTls) {
    ServerOptions options;
    options.listen_address = "0.0.0.0";
    options.listen_port = 0;
    TestHub hub;
    auto package = ModelPackage::open(repository() / "static/models/demo").value();
    EXPECT_THROW(Server(options, package, hub.registry()), std::runtime_error);

    options.insecure_http = true;
    EXPECT_NO_THROW(Server(options, package, hub.registry()));

    options = {};
    options.listen_port = hub.port();

    // A second server fails, because the port is in use.
    EXPECT_THROW(Server(options, package, hub.registry()), std::runtime_error);
}

}  // namespace
}  // namespace moex::net
