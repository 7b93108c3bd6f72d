#include "hub/net/routes.h"

#include <cmath>

#include "hub/base/sha256.h"
#include "hub/net/blobs.h"
#include "hub/net/http/handshake.h"
#include "hub/net/status.h"

namespace moex::net {
namespace {

enum class Handler { asset, blob, worker, health, models, metrics, status, info, api, test };
enum class Key { none, api, admin };
struct Route {
    const char* method;
    const char* path;  // one ending in '*' is a prefix
    Handler handler;
    Key key;
};
constexpr Route route_table[] = {
    {"GET", "/", Handler::asset, Key::none},
    // the fixed table of pages and scripts
    {"GET", "/*", Handler::asset, Key::none},
    {"GET", "/weights/*", Handler::blob, Key::none},
    {"GET", "/worker", Handler::worker, Key::none},
    {"GET", "/health", Handler::health, Key::none},
    {"GET", "/v1/health", Handler::health, Key::none},
    {"GET", "/v1/models", Handler::models, Key::none},
    {"GET", "/v1/models/*", Handler::models, Key::none},
    {"GET", "/metrics", Handler::metrics, Key::admin},
    {"GET", "/api/status", Handler::status, Key::api},
    {"GET", "/api/info", Handler::info, Key::none},
    {"POST", "/v1/chat/completions", Handler::api, Key::api},
    {"POST", "/v1/completions", Handler::api, Key::api},
    {"POST", "/tokenize", Handler::api, Key::api},
    {"POST", "/detokenize", Handler::api, Key::api},
    {"POST", "/api/test", Handler::test, Key::admin},  // only with test_routes
};

const Route* find_route(std::string_view path) {
    const Route* found = nullptr;
    for (const Route& route : route_table) {
        const std::string_view pattern(route.path);
        if (pattern == path) return &route;
        if (pattern != "/*" && pattern.back() == '*' && path.size() >= pattern.size() &&
            path.substr(0, pattern.size() - 1) == pattern.substr(0, pattern.size() - 1))
            found = &route;
    }
    return found;
}

const Route* known_route(std::string_view path, bool test_routes) {
    const Route* route = find_route(path);
    return route && route->handler == Handler::test && !test_routes ? nullptr : route;
}
// What was meant by a path that is not in the table: clients
// add /v1 twice or not at all, and slashes at the end.
std::string meant_path(std::string_view path) {
    std::string_view bare = path;
    while (bare.size() > 1 && bare.back() == '/') bare.remove_suffix(1);
    for (const std::string& other : {std::string(bare), text("/v1", bare),
                                     std::string(bare.starts_with("/v1/") ? bare.substr(3) : bare)})
        if (other != path && find_route(other)) return other;
    return {};
}
std::string no_such_route(std::string_view path) {
    const std::string meant = meant_path(path.substr(0, 200));
    return text(
        "no such route: ", path.substr(0, 200),
        meant.empty() ? "" : text("; did you mean ", meant, "? The API's base URL ends in /v1"));
}
bool is_post(const Route* route) { return route && std::string_view(route->method) == "POST"; }
bool is_read(const HttpRequest& request) {
    return request.method == "GET" || request.method == "HEAD";
}
std::string allowed_methods(bool post) { return post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS"; }
std::string seconds_text(Duration wait) {
    return text(static_cast<std::int64_t>(std::ceil(std::chrono::duration<double>(wait).count())));
}

// design section 7; tried with WASM, WebGPU, WebSocket and Cache.
constexpr const char* page_policy =
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src "
    "'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace

std::vector<RouteInfo> server_routes() {
    std::vector<RouteInfo> routes;
    for (const Route& route : route_table)
        routes.push_back({route.method, route.path, route.key == Key::none});
    return routes;
}

std::string Routes::cors_origin(const HttpRequest& request) const {
    return hub_.access.judge_origin(request) == AccessPolicy::Origin::allowed
               ? std::string(*request.header("origin"))
               : std::string();
}

std::optional<HttpResponse> Routes::refuse_by_origin(const HttpRequest& request) const {
    const std::string_view host = request.header("host").value_or("");
    if (!hub_.access.host_allowed(host))
        return api_error(403,
                         text("Host \"", std::string(host.substr(0, 200)),
                              "\" is not a name of this hub; its owner can add it with --host"),
                         "host_not_allowed");
    if (hub_.access.judge_origin(request) == AccessPolicy::Origin::foreign)
        return api_error(403,
                         "requests from this Origin are not allowed; the hub's owner can add it "
                         "with --cors-origin",
                         "origin_not_allowed");
    return std::nullopt;
}

std::optional<HttpResponse> Routes::refuse_by_key(const HttpRequest& request, Access access) const {
    if (access == Access::open || !hub_.keys_required) return std::nullopt;
    const std::optional<std::string> key = bearer_key(request);
    const std::optional<Role> role = key ? hub_.registry.key_role(*key) : std::nullopt;
    if (role == Role::admin || (role == Role::api && access == Access::api)) return std::nullopt;
    if (role)
        return api_error(403, text("a key of role ", role_name(*role), " does not open this"),
                         "wrong_role");
    HttpResponse refusal = api_error(
        401,
        key ? "the API key is not known here" : "an API key is needed: Authorization: Bearer KEY",
        "invalid_api_key");
    refusal.headers.emplace_back("WWW-Authenticate", "Bearer");
    return refusal;
}

bool Routes::is_admin(const HttpRequest& request) const {
    if (!hub_.keys_required) return true;
    const std::optional<std::string> key = bearer_key(request);
    return key && hub_.registry.key_role(*key) == Role::admin;
}

UpgradeVerdict Routes::judge_upgrade(const HttpRequest& request) const {
    UpgradeVerdict verdict;
    const auto refuse = [&](HttpResponse response) {
        ++hub_.requests_refused;
        verdict.refusal = std::move(response);
        return verdict;
    };
    if (auto refusal = refuse_by_origin(request)) return refuse(std::move(*refusal));
    if (!is_websocket_handshake(request)) {
        HttpResponse response = api_error(426, "/worker is a WebSocket (version 13)",
                                          "upgrade_required");
        response.headers.emplace_back("Upgrade", "websocket");
        response.headers.emplace_back("Sec-WebSocket-Version", "13");
        return refuse(std::move(response));
    }
    if (!hub_.swarm || hub_.draining) {
        HttpResponse response = api_error(
            503, hub_.draining ? "the hub stops" : "the hub is loading", "unavailable");
        response.set_header("Retry-After", "2");
        return refuse(std::move(response));
    }
    if (const Duration wait = hub_.rates.worker_connect(now_steady(), request.remote_address,
                                                        request.loopback);
        wait > Duration{0}) {
        HttpResponse response = api_error(
            429, "too many connections or failed joins from this address", "rate_limited");
        response.set_header("Retry-After", seconds_text(wait));
        return refuse(std::move(response));
    }
    if (hub_.worker_connections->count_of(rate_key(request.remote_address)) >=
        2 * std::size_t{hub_.options.workers_per_address_max}) {
        HttpResponse response = api_error(429, "this address has all its workers connected",
                                          "too_many_workers");
        response.set_header("Retry-After", "30");
        return refuse(std::move(response));
    }
    const std::optional<std::string> token = bearer_key(request);
    if (token) {
        verdict.authorized = hub_.registry.join_allowed(*token);
        if (!verdict.authorized) {
            hub_.rates.hello_failed(now_steady(), request.remote_address, request.loopback);
            return refuse(api_error(401, "the join token is not known here", "invalid_join_token"));
        }
    } else if (hub_.access.judge_origin(request) == AccessPolicy::Origin::none) {
        // Not a page of ours: it must prove that it holds the token before it gets a socket.
        HttpResponse response = api_error(
            401, "without an Origin the join token must come as Authorization: Bearer TOKEN",
            "missing_join_token");
        response.headers.emplace_back("WWW-Authenticate", "Bearer");
        return refuse(std::move(response));
    }
    return verdict;
}

std::optional<HttpResponse> Routes::refuse_by_head(const HttpRequest& head) const {
    std::optional<HttpResponse> refusal = judge_head(head);
    if (refusal) ++hub_.requests_refused;
    return refusal;
}

std::optional<HttpResponse> Routes::judge_head(const HttpRequest& head) const {
    if (auto refusal = refuse_by_origin(head)) return refusal;
    const Route* route = known_route(head.path, hub_.options.test_routes);
    if ((!route || route->handler == Handler::asset) && !hub_.assets.contains(head.path))
        return api_error(404, no_such_route(head.path), "not_found");
    const bool post = is_post(route);
    if (head.method == "OPTIONS") return std::nullopt;
    if (post ? head.method != "POST" : !is_read(head)) {
        HttpResponse response = api_error(
            405, text(head.method, " is not a method of ", head.path.substr(0, 200)),
            "method_not_allowed");
        response.headers.emplace_back("Allow", allowed_methods(post));
        return response;
    }
    if (!route || route->handler == Handler::asset) return std::nullopt;
    // HEAD /worker
    if (route->handler == Handler::worker) return api_error(404, "no such route", "not_found");
    const Access access = route->key == Key::none  ? Access::open
                          : route->key == Key::api ? Access::api
                                                   : Access::admin;
    const auto wait_for = [](unsigned status, const char* message, const char* code,
                             Duration wait) {
        HttpResponse response = api_error(status, message, code);
        response.set_header("Retry-After", seconds_text(wait));
        return response;
    };
    if (auto refusal = refuse_by_key(head, access)) {
        // Guessing keys costs as much as asking with a right one.
        const Duration wait = refusal->status == 401
                                  ? hub_.rates.api_request(now_steady(), head.remote_address,
                                                           head.loopback)
                                  : Duration{0};
        return wait > Duration{0}
                   ? wait_for(429, "too many requests from this address", "rate_limited", wait)
                   : std::move(*refusal);
    }
    if (post && !is_json_content_type(head.header("content-type").value_or("")))
        return api_error(415, "Content-Type must be application/json", "unsupported_media_type");
    if (route->handler != Handler::api) return std::nullopt;
    if (!hub_.api) return wait_for(503, "Loading model", "unavailable", 2s);
    if (hub_.draining)
        return wait_for(503, "the hub stops and takes no new work", "unavailable", 2s);
    if (const Duration wait = hub_.rates.api_request(now_steady(), head.remote_address,
                                                     head.loopback);
        wait > Duration{0})
        return wait_for(429, "too many requests from this address", "rate_limited", wait);
    if (!hub_.keys_required) return std::nullopt;
    // the key itself is kept nowhere
    const std::string key_hash = to_hex(sha256(as_byte_view(*bearer_key(head))));
    if (const Duration wait = hub_.rates.key_request(now_steady(), key_hash, head.loopback);
        wait > Duration{0})
        return wait_for(429, "too many requests with this key", "rate_limited", wait);
    return std::nullopt;
}

void Routes::handle(HttpRequest request, std::shared_ptr<WireResponder> responder) const {
    const Route* route = known_route(request.path, hub_.options.test_routes);
    if (request.method == "OPTIONS") {
        const std::string methods = allowed_methods(is_post(route));
        HttpResponse response;
        response.status = 204;
        response.headers = {{"Allow", methods}};
        if (!cors_origin(request).empty()) {
            response.headers.emplace_back("Access-Control-Allow-Methods", methods);
            // Whatever it wants to send: the origin is the owner's choice, and
            // client libraries add headers of their own with each version.
            response.headers.emplace_back("Access-Control-Allow-Headers",
                                          request.header("access-control-request-headers")
                                              .value_or("Authorization, Content-Type, X-Api-Key"));
            response.headers.emplace_back("Access-Control-Max-Age", "600");
        }
        return responder->respond(std::move(response));
    }
    switch (route ? route->handler : Handler::asset) {
        case Handler::blob: return serve_blob(request, *responder);
        case Handler::health: return serve_health(std::move(responder));
        case Handler::metrics: return serve_metrics(std::move(responder));
        case Handler::status: return serve_status(request, std::move(responder));
        case Handler::info: return serve_info(*responder);
        case Handler::test: return serve_test(request, std::move(responder));
        case Handler::models:
        case Handler::api: break;
        case Handler::asset:
        case Handler::worker: return serve_asset(request, *responder);
    }
    const std::shared_lock rooms(hub_.attached_mutex);
    Api* api = hub_.api;
    if (!api) {
        HttpResponse response = api_error(503, "Loading model", "unavailable");
        response.set_header("Retry-After", "2");
        ++hub_.requests_refused;
        return responder->respond(std::move(response));
    }
    if (request.method == "HEAD") request.method = "GET";
    api->handle(request, std::move(responder));
}

void Routes::serve_asset(const HttpRequest& request, WireResponder& responder) const {
    const std::optional<Asset> found = hub_.assets.find(request.path);
    // a page of --static went away this moment
    if (!found) return responder.respond(api_error(404, "no such route", "not_found"));
    const Asset& asset = *found;
    HttpResponse head;
    head.content_type = asset.content_type;
    head.headers = {{"ETag", asset.etag},
                    {"Cache-Control", "no-cache"},
                    {"Content-Security-Policy", page_policy},
                    {"Cross-Origin-Opener-Policy", "same-origin"},
                    {"Cross-Origin-Embedder-Policy", "require-corp"}};
    if (const auto known = request.header("if-none-match");
        known && etag_matches(*known, asset.etag)) {
        head.status = 304;
        return responder.respond(std::move(head));
    }
    responder.respond_bytes(std::move(head), asset.bytes, asset.keep);
}

void Routes::serve_blob(const HttpRequest& request, WireResponder& responder) const {
    const std::string_view name =
        std::string_view(request.path).substr(std::string_view("/weights/").size());
    const Result<Sha256> hash = parse_sha256(name);
    if (!hash || to_hex(*hash) != name || !hub_.package->has_blob(*hash))
        return responder.respond(api_error(404, "no such blob", "not_found"));
    const Result<ByteView> blob = hub_.package->blob(*hash);
    if (!blob) return responder.respond(api_error(500, "the blob cannot be read", "io_error"));
    BlobAnswer answer = answer_blob(request, blob->size(), text('"', std::string(name), '"'));
    if (answer.head.status == 416 || answer.head.status == 304)
        return responder.respond(std::move(answer.head));
    responder.respond_bytes(std::move(answer.head), blob->subspan(answer.offset, answer.size),
                            hub_.package);
}

void Routes::serve_health(std::shared_ptr<WireResponder> responder) const {
    asio::post(hub_.swarm_strand, [this, responder = std::move(responder)] {
        HttpResponse response;
        response.body = health_json(hub_, response.status).dump();
        if (response.status == 503) response.set_header("Retry-After", "2");
        responder->respond(std::move(response));
    });
}

void Routes::serve_status(const HttpRequest& request,
                          std::shared_ptr<WireResponder> responder) const {
    const bool with_join_url = is_admin(request);
    asio::post(hub_.swarm_strand, [this, with_join_url, responder = std::move(responder)] {
        if (!hub_.swarm) return responder->respond(api_error(503, "Loading model", "unavailable"));
        HttpResponse response;
        response.body = status_json(hub_, with_join_url)
                            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        responder->respond(std::move(response));
    });
}

void Routes::serve_metrics(std::shared_ptr<WireResponder> responder) const {
    asio::post(hub_.swarm_strand, [this, responder = std::move(responder)] {
        HttpResponse response;
        response.content_type = "text/plain; version=0.0.4; charset=utf-8";
        response.body = hub_.metrics.text(metrics_snapshot(hub_));
        responder->respond(std::move(response));
    });
}

void Routes::serve_info(WireResponder& responder) const {
    HttpResponse response;
    response.body = nlohmann::json{
        {"name", "moex-hub"},
        {"version", MOEX_VERSION},
        {"model", hub_.package->name()},
        {"context_tokens", hub_.package->config().context_tokens},
        {"api_key_required", hub_.keys_required},
        {"join_path",
         "/join.html"}}.dump();
    responder.respond(std::move(response));
}

void Routes::serve_test(const HttpRequest& request,
                        std::shared_ptr<WireResponder> responder) const {
    const nlohmann::json body = nlohmann::json::parse(request.body, nullptr, false);
    if (!body.is_object())
        return responder->respond(api_error(400, "want a JSON object", "bad_json"));
    std::optional<HedgePolicy> hedge;
    std::optional<bool> fallback;
    if (body.contains("hedge")) {
        const Result<HedgePolicy> parsed = parse_hedge_policy(
            body["hedge"].is_string() ? body["hedge"].get<std::string>() : "");
        if (!parsed)
            return responder->respond(api_error(400, parsed.error().message, "bad_field", "hedge"));
        hedge = *parsed;
    }
    if (body.contains("local_fallback")) {
        if (!body["local_fallback"].is_boolean())
            return responder->respond(
                api_error(400, "want true or false", "bad_field", "local_fallback"));
        fallback = body["local_fallback"].get<bool>();
    }
    asio::post(hub_.swarm_strand, [this, hedge, fallback, responder = std::move(responder)] {
        SwarmBackend* swarm = hub_.swarm;
        if (!swarm) return responder->respond(api_error(503, "Loading model", "unavailable"));
        if (hedge) swarm->core().set_hedge(*hedge);
        if (fallback) swarm->core().set_local_fallback(*fallback);
        HttpResponse response;
        response.body = "{\"ok\":true}";
        responder->respond(std::move(response));
    });
}

}  // namespace moex::net
