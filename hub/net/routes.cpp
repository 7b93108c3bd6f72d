#include "hub/net/routes.h"

#include "hub/api/openapi.h"
#include "hub/base/log.h"
#include "hub/base/sha256.h"
#include "hub/net/blobs.h"
#include "hub/net/health_watch.h"
#include "hub/net/http/handshake.h"
#include "hub/net/status.h"

namespace moex::net {

using Handler = void (Routes::*)(HttpRequest, Routes::Responder) const;

enum class Work { none, text };  // text: wants the model, and counts against the rates

// Who opens a route. keyed: `role`, where keys are asked for. host: the admin key as Bearer,
// everywhere, from our own pages or from none. claim: the same with the token of a one-time link.
enum class Door { keyed, host, claim };

// A row of the table: what it takes, who answers, and what /openapi.json says of it.
struct Route {
    const char* method;
    const char* path;  // one ending in '*' is a prefix, with something behind it
    Handler handler;
    std::optional<Role> role;  // of the key that it takes off loopback; none: open
    Work work = Work::none;
    // For /openapi.json; a route without a summary is left out there.
    const char* summary = nullptr;
    const char* answer = nullptr;  // schemas of hub/api/openapi.cpp
    const char* request = nullptr;
    const char* rest = nullptr;  // the name of what '*' stands for
    Door door = Door::keyed;

    constexpr Route says(const char* words, const char* answer_schema = nullptr,
                         const char* request_schema = nullptr) const {
        Route row = *this;
        row.summary = words;
        row.answer = answer_schema;
        row.request = request_schema;
        return row;
    }
    constexpr Route with_rest(const char* name) const {
        Route row = *this;
        row.rest = name;
        return row;
    }
};

namespace {

constexpr const char* worker_path = "/worker";
constexpr const char* test_path = "/api/test";
constexpr std::nullopt_t open_to_all = std::nullopt;

constexpr Route get(const char* path, Handler handler, std::optional<Role> role) {
    return {"GET", path, handler, role};
}

// Work on a text: for the API's keys, within the rates.
constexpr Route post_text(const char* path, Handler handler) {
    return {"POST", path, handler, Role::api, Work::text};
}

constexpr Route hosts(const char* method, const char* path, Handler handler,
                      Door door = Door::host) {
    Route row{method, path, handler, Role::admin};
    row.door = door;
    return row;
}

constexpr Route route_table[] = {
    // the pages and scripts: a fixed table, embedded in the binary or from --static
    get("/", &Routes::serve_asset, open_to_all),
    get("/*", &Routes::serve_asset, open_to_all),

    get("/weights/*", &Routes::serve_blob, open_to_all)
        .says("An expert's weights, by their SHA-256; ranges and ETag.")
        .with_rest("sha256"),
    get(worker_path, &Routes::refuse_plain_worker, open_to_all)
        .says("The WebSocket of contributors; 101 after the upgrade (protocol/PROTOCOL.md)."),

    get("/health", &Routes::serve_health, open_to_all)
        .says("Whether requests can be answered now: 200 or 503.", "Health"),
    get("/v1/health", &Routes::serve_health, open_to_all).says("The same as /health.", "Health"),
    get("/metrics", &Routes::serve_metrics, Role::admin).says("Counters for Prometheus, as text."),
    get("/api/status", &Routes::serve_status, Role::api)
        .says("What the status page shows.", "Status"),
    get("/api/history", &Routes::serve_history, Role::api)
        .says("The last hour, day or week (?span=1h, 24h or 7d).", "History"),
    get("/api/info", &Routes::serve_info, open_to_all).says("What the pages ask first.", "Info"),
    get("/openapi.json", &Routes::serve_openapi, open_to_all).says("This description."),

    get("/v1/models", &Routes::ask_api<&Api::models>, open_to_all)
        .says("The model that is served.", "ModelList"),
    get("/v1/models/*", &Routes::ask_api<&Api::model>, open_to_all)
        .says("One model.", "Model")
        .with_rest("model"),
    post_text("/v1/chat/completions", &Routes::ask_api<&Api::chat>)
        .says("An answer to a chat, whole or as a stream of events.", "ChatCompletion",
              "ChatRequest"),
    post_text("/v1/completions", &Routes::ask_api<&Api::complete>)
        .says("A text goes on, whole or as a stream of events.", "Completion", "CompletionRequest"),
    post_text("/tokenize", &Routes::ask_api<&Api::tokenize>)
        .says("A text as token ids.", "Tokens", "TokenizeRequest"),
    post_text("/detokenize", &Routes::ask_api<&Api::detokenize>)
        .says("Token ids as text.", "Text", "DetokenizeRequest"),

    hosts("GET", "/api/admin/keys", &Routes::list_keys)
        .says("All keys by their public ids, with what was used.", "Keys"),
    hosts("POST", "/api/admin/keys", &Routes::make_key)
        .says("A new key, shown this once.", "Key", "KeyWish"),
    hosts("POST", "/api/admin/keys/revoke", &Routes::revoke_key)
        .says("Ends a key and what runs with it.", "KeyId", "KeyId"),
    hosts("GET", "/api/admin/join", &Routes::show_join_link)
        .says("The link by which workers join.", "JoinLink"),
    hosts("POST", "/api/admin/join/rotate", &Routes::rotate_join_link)
        .says("A new join link; the former one lets nobody in.", "JoinLink", "Nothing"),
    hosts("GET", "/api/admin/settings", &Routes::show_settings)
        .says("The settings in force and where each came from.", "Settings"),
    hosts("POST", "/api/admin/claim", &Routes::claim_admin, Door::claim)
        .says("An admin key for the token of a one-time link.", "ClaimedKey", "Nothing"),

    // only with test_routes
    {"POST", test_path, &Routes::serve_test, Role::admin},
};

// The table as /openapi.json shows it; the same for every hub of this version.
std::string describe_routes() {
    std::vector<DescribedRoute> described;
    for (const Route& route : route_table) {
        if (!route.summary) continue;
        std::string path(route.path);
        if (route.rest) path.replace(path.size() - 1, 1, text('{', route.rest, '}'));
        described.push_back({.method = route.method,
                             .path = std::move(path),
                             .summary = route.summary,
                             .request = route.request,
                             .answer = route.answer,
                             .takes_key = route.role.has_value(),
                             .counts = route.work == Work::text});
    }
    return openapi_document(described, MOEX_VERSION);
}

bool is_prefix(std::string_view pattern) { return pattern.back() == '*'; }

// What the '*' of `pattern` stands for in `path`; nothing where it has none.
std::string_view rest_of(std::string_view path, std::string_view pattern) {
    return is_prefix(pattern) ? path.substr(pattern.size() - 1) : std::string_view();
}

// The row of a path, the pages aside: an exact one before a prefix, one of that method before
// others.
const Route* find_route(std::string_view path, std::string_view method = {}) {
    const Route* found = nullptr;
    bool is_exact = false;
    for (const Route& route : route_table) {
        const std::string_view pattern(route.path);
        if (route.handler == &Routes::serve_asset) continue;
        if (pattern == path) {
            if (!is_exact || method == route.method) found = &route;
            is_exact = true;
            continue;
        }
        if (is_exact) continue;
        const std::string_view start = pattern.substr(0, pattern.size() - 1);
        if (is_prefix(pattern) && path.size() > start.size() && path.starts_with(start))
            found = &route;
    }
    return found;
}

const Route* page_route() { return &route_table[1]; }

// What was meant by a path that is not in the table: clients
// add /v1 twice or not at all, and slashes at the end.
std::string meant_path(std::string_view path) {
    std::string_view bare = path;
    while (bare.size() > 1 && bare.back() == '/') bare.remove_suffix(1);
    const std::string without_v1(bare.starts_with("/v1/") ? bare.substr(3) : bare);

    for (const std::string& other : {std::string(bare), text("/v1", bare), without_v1})
        if (other != path && find_route(other)) return other;
    return {};
}

Refusal no_such_route(std::string_view path) {
    const std::string_view shown = path.substr(0, 200);
    const std::string meant = meant_path(shown);
    return {
        404,
        text("no such route: ", shown,
             meant.empty() ? ""
                           : text("; did you mean ", meant, "? The API's base URL ends in /v1")),
        "not_found", ""};
}

std::string allowed_methods(const Route& route) {
    bool gets = false, posts = false;
    for (const Route& row : route_table) {
        if (std::string_view(row.path) != route.path) continue;
        (std::string_view(row.method) == "POST" ? posts : gets) = true;
    }
    return text(gets ? "GET, HEAD, " : "", posts ? "POST, " : "", "OPTIONS");
}

// What our pages may load: only their own files. Tried with WASM, WebGPU, WebSocket and Cache.
constexpr const char* page_policy =
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src "
    "'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace

std::string Routes::cors_origin(const HttpRequest& request) const {
    return hub_.live()->access.judge_origin(request) == AccessPolicy::Origin::allowed
               ? std::string(*request.header("origin"))
               : std::string();
}

Checked<void> Routes::check_origin(const HttpRequest& request) const {
    const std::string_view host = request.header("host").value_or("");
    if (!hub_.live()->access.host_allowed(host))
        return Refusal{403,
                       text("Host \"", std::string(host.substr(0, 200)),
                            "\" is not a name of this hub; its owner can add it with --host, or "
                            "name the proxy before it with --trusted-proxy"),
                       "host_not_allowed", ""};

    if (hub_.live()->access.judge_origin(request) == AccessPolicy::Origin::foreign)
        return Refusal{403,
                       "requests from this Origin are not allowed; the hub's owner can add it "
                       "with --cors-origin",
                       "origin_not_allowed", ""};
    return {};
}

Checked<void> Routes::check_method(const HttpRequest& request, const Route& route) const {
    const bool fits = request.method == route.method ||
                      (request.method == "HEAD" && std::string_view(route.method) == "GET");
    if (fits) return {};
    return Refusal{
        .status = 405,
        .message = text(request.method, " is not a method of ", request.path.substr(0, 200)),
        .code = "method_not_allowed",
        .param = {},
        .headers = {{"Allow", allowed_methods(route)}}};
}

Checked<void> Routes::check_key(const HttpRequest& request, Role wanted) const {
    if (!hub_.keys_required) return {};
    const std::optional<std::string> key = bearer_key(request);
    const std::optional<Role> role = key ? hub_.registry.key_role(*key) : std::nullopt;
    if (role == Role::admin || role == wanted) return {};

    if (role)
        return Refusal{403, text("a key of role ", role_name(*role), " does not open this"),
                       "wrong_role", ""};
    return Refusal{.status = 401,
                   .message = key ? "the API key is not known here"
                                  : "an API key is needed: Authorization: Bearer KEY",
                   .code = "invalid_api_key",
                   .param = {},
                   .headers = {{"WWW-Authenticate", "Bearer"}}};
}

// Guessing keys costs as much as asking with a right one.
Checked<void> Routes::slow_down(const HttpRequest& request, Refusal refusal) const {
    const Duration wait = hub_.rates.api_request(now_steady(), request.remote_address,
                                                 request.loopback);
    if (wait == Duration{0}) return refusal;
    return refuse_for_now(429, "too many requests from this address", "rate_limited", wait);
}

Checked<void> Routes::check_key_and_rate(const HttpRequest& request, Role role) const {
    const Checked<void> key = check_key(request, role);
    if (key.ok() || key.refusal().status != 401) return key;
    return slow_down(request, key.refusal());
}

// A page that may call the API is not the host.
Checked<void> Routes::check_own_page(const HttpRequest& request) const {
    if (hub_.live()->access.judge_origin(request) != AccessPolicy::Origin::allowed) return {};
    return Refusal{403, "this is for the hub's own pages, whatever --cors-origin allows",
                   "origin_not_allowed", ""};
}

// The key stands in Authorization alone: a browser adds nothing there by itself.
Checked<void> Routes::check_host(const HttpRequest& request, const Route& route) const {
    MOEX_ADMIT(check_own_page(request));
    const std::optional<std::string> key = request.header("authorization") ? bearer_key(request)
                                                                           : std::nullopt;
    if (route.door == Door::claim && key && hub_.registry.take_claim(*key)) return {};

    const std::optional<Role> role = key ? hub_.registry.key_role(*key) : std::nullopt;
    if (route.door == Door::host && role == Role::admin) return {};
    if (role && route.door == Door::host)
        return Refusal{403, text("a key of role ", role_name(*role), " does not open this"),
                       "wrong_role", ""};

    const char* const wanted =
        route.door == Door::claim
            ? "this link was used before, or is of an earlier start; a new start prints a new one, "
              "and `moex-hub key add NAME --role admin` makes a key"
            : "the admin key is needed: Authorization: Bearer KEY";
    return slow_down(request, {.status = 401,
                               .message = wanted,
                               .code = "invalid_api_key",
                               .param = {},
                               .headers = {{"WWW-Authenticate", "Bearer"}}});
}

bool Routes::may_see_join_link(const HttpRequest& request) const {
    if (!check_own_page(request).ok()) return false;
    if (!hub_.keys_required) return true;
    const std::optional<std::string> key = bearer_key(request);
    return key && hub_.registry.key_role(*key) == Role::admin;
}

// Whether there is anybody to do the work, and whether this client may ask for more of it.
Checked<void> Routes::check_work(const HttpRequest& request, Admission& admission) const {
    if (!hub_.api) return refuse_for_now(503, "Loading model", "unavailable", 2s);
    if (hub_.draining)
        return refuse_for_now(503, "the hub stops and takes no new work", "unavailable", 2s);

    const TimePoint now = now_steady();
    if (const Duration wait = hub_.rates.api_request(now, request.remote_address, request.loopback);
        wait > Duration{0})
        return refuse_for_now(429, "too many requests from this address", "rate_limited", wait);

    // Where no key is asked for, one that is known counts all the same.
    const std::optional<std::string> key = bearer_key(request);
    if (key) admission.key = hub_.registry.find_key(*key);
    if (!hub_.keys_required) return {};

    // the key itself is kept nowhere
    admission.key_hash = to_hex(sha256(as_byte_view(*key)));
    if (const Duration wait = hub_.rates.key_request(now, admission.key_hash, request.loopback);
        wait > Duration{0})
        return refuse_for_now(429, "too many requests with this key", "rate_limited", wait);
    return {};
}

// A long text costs more than a short one: its bytes count as well.
Checked<void> Routes::check_cost(const Admission& admission, const HttpRequest& request) const {
    const Duration wait = hub_.rates.text_bytes(now_steady(), request.remote_address,
                                                admission.key_hash, request.loopback,
                                                request.body.size());
    if (wait == Duration{0}) return {};
    return refuse_for_now(429, "too many bytes of text from this client", "rate_limited", wait);
}

Checked<Admission> Routes::admit(const HttpRequest& head) const {
    Checked<Admission> admission = judge_head(head);
    if (!admission.ok()) ++hub_.requests_refused;
    return admission;
}

Checked<Admission> Routes::judge_head(const HttpRequest& head) const {
    MOEX_ADMIT(check_origin(head));

    const bool is_head = head.method == "HEAD";
    const Route* route = find_route(head.path, is_head ? "GET" : head.method);
    if (route && route->path == test_path && !hub_.options.test_routes) route = nullptr;
    if (!route && hub_.assets.contains(head.path)) route = page_route();
    if (!route) return no_such_route(head.path);

    Admission admission{.route = route};
    if (head.method == "OPTIONS") {
        if (route->door != Door::keyed) MOEX_ADMIT(check_own_page(head));
        admission.is_preflight = true;
        return admission;
    }
    MOEX_ADMIT(check_method(head, *route));

    if (route->path == worker_path) {
        if (head.method == "HEAD") return Refusal{404, "no such route", "not_found", ""};
        admission.is_upgrade = true;
        return admission;
    }

    if (route->door != Door::keyed)
        MOEX_ADMIT(check_host(head, *route));
    else if (route->role)
        MOEX_ADMIT(check_key_and_rate(head, *route->role));
    const bool has_body = head.method == "POST";
    if (has_body && !is_json_content_type(head.header("content-type").value_or("")))
        return Refusal{415, "Content-Type must be application/json", "unsupported_media_type", ""};
    if (route->work == Work::text) MOEX_ADMIT(check_work(head, admission));
    return admission;
}

Checked<WorkerAdmission> Routes::admit_worker(const HttpRequest& request) const {
    Checked<WorkerAdmission> admission = judge_worker(request);
    if (!admission.ok()) ++hub_.requests_refused;
    return admission;
}

Checked<WorkerAdmission> Routes::judge_worker(const HttpRequest& request) const {
    if (!is_websocket_handshake(request))
        return Refusal{.status = 426,
                       .message = "/worker is a WebSocket (version 13)",
                       .code = "upgrade_required",
                       .param = {},
                       .headers = {{"Upgrade", "websocket"}, {"Sec-WebSocket-Version", "13"}}};

    if (!hub_.swarm || hub_.draining)
        return refuse_for_now(503, hub_.draining ? "the hub stops" : "the hub is loading",
                              "unavailable", 2s);

    const TimePoint now = now_steady();
    if (const Duration wait = hub_.rates.worker_connect(now, request.remote_address,
                                                        request.loopback);
        wait > Duration{0})
        return refuse_for_now(429, "too many connections or failed joins from this address",
                              "rate_limited", wait);

    const std::size_t connected = hub_.worker_connections->count_of(
        rate_key(request.remote_address));
    if (connected >= 2 * std::size_t{hub_.options.workers_per_address_max})
        return refuse_for_now(429, "this address has all its workers connected", "too_many_workers",
                              30s);

    if (const std::optional<std::string> token = bearer_key(request)) {
        if (hub_.registry.join_allowed(*token)) return WorkerAdmission{.authorized = true};
        hub_.rates.hello_failed(now, request.remote_address, request.loopback);
        return Refusal{401, "the join token is not known here", "invalid_join_token", ""};
    }

    // Not a page of ours: it must prove that it holds the token before it gets a socket.
    if (hub_.live()->access.judge_origin(request) == AccessPolicy::Origin::none)
        return Refusal{
            .status = 401,
            .message = "without an Origin the join token must come as Authorization: Bearer TOKEN",
            .code = "missing_join_token",
            .param = {},
            .headers = {{"WWW-Authenticate", "Bearer"}}};
    return WorkerAdmission{};
}

void Routes::handle(const Admission& admission, HttpRequest request,
                    std::shared_ptr<WireResponder> responder) const {
    const Route& route = *admission.route;
    if (admission.is_preflight) return answer_preflight(route, request, *responder);
    if (route.work == Work::text)
        if (const auto cost = check_cost(admission, request); !cost.ok()) {
            ++hub_.requests_refused;
            return responder->refuse(cost.refusal());
        }
    request.rest = rest_of(request.path, route.path);
    // Two keys behind one address take turns, and neither finds what the other's prompts left.
    request.client = text(rate_key(request.remote_address), ' ', admission.key_hash);
    if (route.work == Work::text) request.account = hub_.accounts.open(admission.key);
    (this->*route.handler)(std::move(request), std::move(responder));
}

void Routes::answer_preflight(const Route& route, const HttpRequest& request,
                              WireResponder& responder) const {
    const std::string methods = allowed_methods(route);
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
    responder.respond(std::move(response));
}

// An admitted upgrade never comes here: its connection becomes the worker's.
void Routes::refuse_plain_worker(HttpRequest, Responder responder) const {
    responder->refuse({404, "no such route", "not_found", ""});
}

template <void (Api::*method)(HttpRequest, Api::Responder)>
void Routes::ask_api(HttpRequest request, Responder responder) const {
    const std::shared_lock attached(hub_.attached_mutex);
    if (Api* api = hub_.api) return (api->*method)(std::move(request), std::move(responder));
    ++hub_.requests_refused;
    responder->refuse(refuse_for_now(503, "Loading model", "unavailable", 2s));
}

void Routes::serve_asset(HttpRequest request, Responder responder) const {
    const std::optional<Asset> found = hub_.assets.find(request.path);
    // a page of --static went away this moment
    if (!found) return responder->refuse({404, "no such route", "not_found", ""});
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
        return responder->respond(std::move(head));
    }
    responder->respond_bytes(std::move(head), asset.bytes, asset.keep);
}

void Routes::serve_blob(HttpRequest request, Responder responder) const {
    const std::string& name = request.rest;
    const Result<Sha256> hash = parse_sha256(name);
    if (!hash || to_hex(*hash) != name || !hub_.package->has_blob(*hash))
        return responder->refuse({404, "no such blob", "not_found", ""});

    const Result<ByteView> blob = hub_.package->blob(*hash);
    if (!blob) {
        log_error("http: a blob cannot be read", kv("blob", name), kv("why", blob.error().message));
        return responder->refuse({500, "the blob cannot be read", "io_error", ""});
    }
    BlobAnswer answer = answer_blob(request, blob->size(), text('"', name, '"'));
    if (answer.head.status == 416 || answer.head.status == 304)
        return responder->respond(std::move(answer.head));
    responder->respond_bytes(std::move(answer.head), blob->subspan(answer.offset, answer.size),
                             hub_.package);
}

void Routes::serve_health(HttpRequest, Responder responder) const {
    const Health health = current_health(hub_);
    HttpResponse response;
    response.status = health.state == HealthState::ok ? 200 : 503;
    response.body = health_json(health).dump();
    if (response.status == 503) response.set_header("Retry-After", "2");
    responder->respond(std::move(response));
}

void Routes::serve_status(HttpRequest request, Responder responder) const {
    const bool with_join_url = may_see_join_link(request);
    asio::post(hub_.swarm_strand, [this, with_join_url, responder = std::move(responder)] {
        if (!hub_.swarm) return responder->refuse({503, "Loading model", "unavailable", ""});
        HttpResponse response;
        response.body = status_json(hub_, with_join_url)
                            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        responder->respond(std::move(response));
    });
}

void Routes::serve_metrics(HttpRequest, Responder responder) const {
    asio::post(hub_.swarm_strand, [this, responder = std::move(responder)] {
        HttpResponse response;
        response.content_type = "text/plain; version=0.0.4; charset=utf-8";
        response.body = hub_.metrics.text(metrics_snapshot(hub_));
        responder->respond(std::move(response));
    });
}

void Routes::serve_info(HttpRequest, Responder responder) const {
    HttpResponse response;
    response.body = nlohmann::json{
        {"name", "moex-hub"},
        {"version", MOEX_VERSION},
        {"model", hub_.package->name()},
        {"context_tokens", hub_.package->config().context_tokens},
        {"api_key_required", hub_.keys_required},
        {"join_path",
         "/join.html"}}.dump();
    responder->respond(std::move(response));
}

void Routes::serve_openapi(HttpRequest, Responder responder) const {
    static const std::string document = describe_routes();
    HttpResponse response;
    response.body = document;
    responder->respond(std::move(response));
}

void Routes::serve_test(HttpRequest request, Responder responder) const {
    const nlohmann::json body = nlohmann::json::parse(request.body, nullptr, false);
    if (!body.is_object()) return responder->refuse({400, "want a JSON object", "bad_json", ""});
    std::optional<HedgePolicy> hedge;
    std::optional<bool> fallback;
    if (body.contains("hedge")) {
        const Result<HedgePolicy> parsed = parse_hedge_policy(
            body["hedge"].is_string() ? body["hedge"].get<std::string>() : "");
        if (!parsed) return responder->refuse({400, parsed.error().message, "bad_field", "hedge"});
        hedge = *parsed;
    }
    if (body.contains("local_fallback")) {
        if (!body["local_fallback"].is_boolean())
            return responder->refuse({400, "want true or false", "bad_field", "local_fallback"});
        fallback = body["local_fallback"].get<bool>();
    }
    asio::post(hub_.swarm_strand, [this, hedge, fallback, responder = std::move(responder)] {
        SwarmBackend* swarm = hub_.swarm;
        if (!swarm) return responder->refuse({503, "Loading model", "unavailable", ""});
        if (hedge) swarm->core().set_hedge(*hedge);
        if (fallback) swarm->core().set_local_fallback(*fallback);
        HttpResponse response;
        response.body = "{\"ok\":true}";
        responder->respond(std::move(response));
    });
}

std::vector<RouteInfo> server_routes() {
    std::vector<RouteInfo> routes;
    for (const Route& route : route_table)
        routes.push_back({route.method, route.path, !route.role, route.door != Door::keyed});
    return routes;
}

}  // namespace moex::net
