#include "hub/net/routes/routes.h"

#include "hub/base/log.h"
#include "hub/base/sha256.h"
#include "hub/base/signing_key.h"
#include "hub/net/health_watch.h"
#include "hub/net/http/handshake.h"
#include "hub/net/routes/blobs.h"
#include "hub/net/routes/route.h"
#include "hub/net/routes/status.h"
#include "protocol/thread_name.h"

namespace moex::net {

namespace {

// The content security policy: pages may load only files of the hub. The policy was tried with
// pages that use WASM, WebGPU, WebSocket and Cache.
constexpr const char* page_policy =
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src "
    "'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// Returns the hub that a worker names by /worker?hub=ID.
std::optional<std::string_view> wanted_hub(const HttpRequest& request) {
    constexpr std::string_view name = "hub=";
    const std::string_view query(request.query);
    if (!query.starts_with(name)) return std::nullopt;
    return query.substr(name.size());
}

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
                            "\" is not a name of this hub; its operator can add it with --host, or "
                            "name the proxy before it with --trusted-proxy"),
                       "host_not_allowed", ""};

    if (hub_.live()->access.judge_origin(request) == AccessPolicy::Origin::foreign)
        return Refusal{403,
                       "requests from this Origin are not allowed; the hub's operator can add it "
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

// Makes a request with a wrong key count against the rate limit, as a request with a valid key
// does, so that keys cannot be guessed quickly.
Checked<void> Routes::slow_down(const HttpRequest& request, Refusal refusal) const {
    const Duration wait = hub_.rates.api_request(now_steady(), request.remote_address,
                                                 request.loopback);
    if (wait == Duration{0}) return refusal;
    return refuse_for_now(429, "too many requests from this address", "rate_limited", wait);
}

Checked<void> Routes::check_key_and_rate(const HttpRequest& request, Role role) const {
    Checked<void> key = check_key(request, role);
    if (key.ok() || key.refusal().status != 401) return key;
    return slow_down(request, key.refusal());
}

// Refuses pages of another origin: a page that may call the API is not therefore the operator's.
Checked<void> Routes::check_own_page(const HttpRequest& request) const {
    if (hub_.live()->access.judge_origin(request) != AccessPolicy::Origin::allowed) return {};
    return Refusal{403, "this is for the hub's own pages, whatever --cors-origin allows",
                   "origin_not_allowed", ""};
}

// Checks the admin key of an operator's request. The key is read only from the Authorization
// header, which a browser never adds by itself.
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

// Checks the join token. As at /worker, the token is also required on loopback.
Checked<void> Routes::check_join_token(const HttpRequest& request) const {
    MOEX_ADMIT(check_own_page(request));
    const std::optional<std::string> token = bearer_key(request);
    if (token && hub_.registry.join_allowed(*token)) return {};
    return slow_down(request, {.status = 401,
                               .message = "the join token is needed: Authorization: Bearer TOKEN",
                               .code = "invalid_join_token",
                               .param = {},
                               .headers = {{"WWW-Authenticate", "Bearer"}}});
}

bool Routes::may_see_join_link(const HttpRequest& request) const {
    if (!check_own_page(request).ok()) return false;
    if (!hub_.keys_required) return true;
    const std::optional<std::string> key = bearer_key(request);
    return key && hub_.registry.key_role(*key) == Role::admin;
}

// Checks that the hub can do the request's work, and that the client is within its rate limit.
Checked<void> Routes::check_work(const HttpRequest& request, Admission& admission) const {
    if (!hub_.api) return refuse_for_now(503, "Loading model", "unavailable", 2s);
    if (hub_.draining)
        return refuse_for_now(503, "the hub stops and takes no new work", "unavailable", 2s);

    const TimePoint now = now_steady();
    if (const Duration wait = hub_.rates.api_request(now, request.remote_address, request.loopback);
        wait > Duration{0})
        return refuse_for_now(429, "too many requests from this address", "rate_limited", wait);

    // Where no key is required, a key that the client sends and the hub knows is still used for the
    // accounts.
    const std::optional<std::string> key = bearer_key(request);
    if (key) admission.key = hub_.registry.find_key(*key);
    if (!hub_.keys_required) return {};

    // store the hash, because the hub never stores a key itself
    admission.key_hash = to_hex(sha256(as_byte_view(*key)));
    if (const Duration wait = hub_.rates.key_request(now, admission.key_hash, request.loopback);
        wait > Duration{0})
        return refuse_for_now(429, "too many requests with this key", "rate_limited", wait);
    return {};
}

// Checks the rate limit of text bytes, because a long text costs more than a short one.
Checked<void> Routes::check_cost(const Admission& admission, const HttpRequest& request) const {
    const Duration wait = hub_.rates.text_bytes(now_steady(), request.remote_address,
                                                admission.key_hash, request.loopback,
                                                request.body.size());
    if (wait == Duration{0}) return {};
    return refuse_for_now(429, "too many bytes of text from this client", "rate_limited", wait);
}

// Checks the type of a body. A form of a foreign page can send a body without asking first, but not
// one of type JSON. Ollama's clients name no type, so its routes ask the browser instead.
Checked<void> Routes::check_body_type(const HttpRequest& head, const Route& route) const {
    if (const auto coding = head.header("content-encoding"); coding && *coding != "identity")
        return Refusal{415,
                       text("Content-Encoding \"", coding->substr(0, 40),
                            "\" is not supported; send the body as it is"),
                       "unsupported_media_type", ""};
    if (route.dialect == Dialect::ollama) return check_no_foreign_page(head);
    const std::string_view type = head.header("content-type").value_or("");
    // No form of a page can send this type either.
    if (route.body_bytes_max > 0) {
        if (type == "application/octet-stream") return {};
        return Refusal{415, "Content-Type must be application/octet-stream",
                       "unsupported_media_type", ""};
    }
    if (is_json_content_type(type)) return {};
    return Refusal{415, "Content-Type must be application/json", "unsupported_media_type", ""};
}

// Refuses a request that a page of another origin sent. A foreign Origin was refused before;
// browsers also say it by Sec-Fetch-Site, which a page cannot set.
Checked<void> Routes::check_no_foreign_page(const HttpRequest& head) const {
    const std::string_view site = head.header("sec-fetch-site").value_or("none");
    const bool is_own = site == "none" || site == "same-origin";
    if (is_own || hub_.live()->access.judge_origin(head) == AccessPolicy::Origin::allowed)
        return {};
    return Refusal{403,
                   "pages of another origin may not send this; the hub's operator can add the "
                   "origin with --cors-origin",
                   "origin_not_allowed", ""};
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
    if (route && route->path == std::string_view(test_path) && !hub_.options.test_routes)
        route = nullptr;
    if (!route && hub_.assets.contains(head.path)) route = page_route();
    if (!route) return no_such_route(head.path);

    Admission admission{.route = route};
    if (head.method == "OPTIONS") {
        if (route->door != Door::keyed) MOEX_ADMIT(check_own_page(head));
        admission.is_preflight = true;
        return admission;
    }
    MOEX_ADMIT(check_method(head, *route));

    if (route->path == std::string_view(worker_path)) {
        if (head.method == "HEAD") return Refusal{404, "no such route", "not_found", ""};
        admission.is_upgrade = true;
        return admission;
    }

    if (route->door == Door::join)
        MOEX_ADMIT(check_join_token(head));
    else if (route->door != Door::keyed)
        MOEX_ADMIT(check_host(head, *route));
    else if (route->role)
        MOEX_ADMIT(check_key_and_rate(head, *route->role));
    if (head.method == "POST") MOEX_ADMIT(check_body_type(head, *route));
    if (route->work == Work::text) MOEX_ADMIT(check_work(head, admission));
    return admission;
}

Checked<WorkerAdmission> Routes::admit_worker(const HttpRequest& request) const {
    Checked<WorkerAdmission> admission = judge_worker(request);
    if (!admission.ok()) {
        ++hub_.requests_refused;
        return admission;
    }
    const auto fleet = hub_.registry.fleet();
    const std::string& own = fleet->self.hub_id;
    const auto wanted = wanted_hub(request);
    if (wanted && !own.empty() && *wanted != own)
        log_rarely(LogLevel::info, "fleet: a worker that wanted another hub is here",
                   kv("wanted", *wanted));
    return admission;
}

// Checks "?hub=ID", by which a balancer sends a worker to a hub of its fleet. If that hub is gone,
// the worker may stay here: WELCOME names the hub where it is.
Checked<void> Routes::check_wanted_hub(const HttpRequest& request) const {
    const auto wanted = wanted_hub(request);
    if (!wanted || is_hub_id(*wanted)) return {};
    return Refusal{400, "/worker?hub=ID names a hub by its eight hexadecimal digits",
                   "invalid_value", "hub"};
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

    if (const Checked<void> wanted = check_wanted_hub(request); !wanted.ok())
        return wanted.refusal();
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

    // The client is not a page of the hub, so it must send the join token before it gets a socket.
    if (hub_.live()->access.judge_origin(request) == AccessPolicy::Origin::none)
        return Refusal{
            .status = 401,
            .message =
                "without an Origin the join token must be sent as Authorization: Bearer TOKEN",
            .code = "missing_join_token",
            .param = {},
            .headers = {{"WWW-Authenticate", "Bearer"}}};
    return WorkerAdmission{};
}

void Routes::handle(const Admission& admission, HttpRequest request,
                    std::shared_ptr<WireResponder> responder) const {
    const Route& route = *admission.route;
    if (admission.is_preflight) return answer_preflight(route, request, *responder);
    // Pages are no text; their tokens count against the key's limit.
    if (route.work == Work::text && route.body_bytes_max == 0)
        if (const auto cost = check_cost(admission, request); !cost.ok()) {
            ++hub_.requests_refused;
            return responder->refuse(cost.refusal());
        }
    request.rest = rest_of(request.path, route.path);
    // Two keys behind one address are two clients: they share the engine in round-robin order, and
    // neither reuses the cached prompts of the other.
    request.client = text(rate_key(request.remote_address), ' ', admission.key_hash);
    const auto key = hub_.keys_required ? bearer_key(request) : std::nullopt;
    request.owner = key ? to_hex(sha256(as_byte_view(*key))) : rate_key(request.remote_address);
    if (route.work == Work::text)
        request.account = hub_.accounts.open(admission.key);
    else if (hub_.options.fleet_key && request.path.starts_with("/v1/streams/"))
        // A stream of another hub may go on here.
        request.account = hub_.accounts.open(key ? hub_.registry.find_key(*key) : std::nullopt);
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
        // Allow every header. The operator has chosen the origin, and each version of a client
        // library adds further headers.
        response.headers.emplace_back("Access-Control-Allow-Headers",
                                      request.header("access-control-request-headers")
                                          .value_or("Authorization, Content-Type, X-Api-Key"));
        response.headers.emplace_back("Access-Control-Max-Age", "600");
    }
    responder.respond(std::move(response));
}

// Answers a request that is not an upgrade. An admitted upgrade request does not reach this
// function, because its connection is handed over to a worker.
void Routes::refuse_plain_worker(HttpRequest, Responder responder) const {
    responder->refuse({404, "no such route", "not_found", ""});
}

void Routes::serve_asset(HttpRequest request, Responder responder) const {
    const std::optional<Asset> found = hub_.assets.find(
        request.path, request.header("accept-encoding").value_or(""));
    // a page of --static was deleted after the start
    if (!found) return responder->refuse({404, "no such route", "not_found", ""});
    const Asset& asset = *found;
    HttpResponse head;
    head.content_type = asset.content_type;
    head.headers = {{"ETag", asset.etag},
                    {"Cache-Control", "no-cache"},
                    {"Content-Security-Policy", page_policy},
                    {"Cross-Origin-Opener-Policy", "same-origin"},
                    {"Cross-Origin-Embedder-Policy", "require-corp"}};
    if (asset.has_codings) head.headers.emplace_back("Vary", "Accept-Encoding");
    if (const auto known = request.header("if-none-match");
        known && etag_matches(*known, asset.etag)) {
        head.status = 304;
        return responder->respond(std::move(head));
    }
    if (!asset.coding.empty()) head.headers.emplace_back("Content-Encoding", asset.coding);
    responder->respond_bytes(std::move(head), asset.bytes, asset.keep);
}

void Routes::serve_blob(HttpRequest request, Responder responder) const {
    const std::string& name = request.rest;
    const Result<Sha256> hash = parse_sha256(name);
    const bool is_hash = hash && to_hex(*hash) == name;
    if (is_hash && hub_.package->has_blob(*hash)) {
        auto answer = [this, hash = *hash, request = std::move(request),
                       responder = std::move(responder)] {
            answer_range(request, hub_.package, hub_.package->blob(hash), Keeps::anybody,
                         *responder);
        };
        return answer_checked(*hub_.package, *hash, std::move(answer));
    }

    const auto layer = is_hash && hub_.layers.find ? hub_.layers.find(*hash) : nullptr;
    if (!layer) return responder->refuse({404, "no such blob", "not_found", ""});
    BlobAnswer answer = answer_blob(request, layer->size(), text('"', name, '"'));
    if (answer.head.status == 416 || answer.head.status == 304)
        return responder->respond(std::move(answer.head));
    responder->respond_bytes(std::move(answer.head),
                             ByteView(*layer).subspan(answer.offset, answer.size), layer);
}

// Calls `answer` on a thread that may compute the blob's SHA-256: this one has other connections.
void Routes::answer_checked(const ModelPackage& package, const Sha256& hash,
                            std::function<void()> answer) const {
    if (!package.must_hash(hash)) return answer();
    asio::post(hub_.hash_threads, [answer = std::move(answer)] {
        name_thread("hash");
        answer();
    });
}

// Sends the manifest, without which the hub's signature says little. The weights may be served by
// another machine, but the manifest is the hub's.
void Routes::serve_manifest(HttpRequest request, Responder responder) const {
    const std::string& name = hub_.package->manifest_sha256();
    const std::string etag = text('"', name, '"');
    HttpResponse head;
    head.content_type = "application/json";
    head.headers = {{"ETag", etag}, {"Cache-Control", "no-cache"}};
    if (const auto known = request.header("if-none-match"); known && etag_matches(*known, etag)) {
        head.status = 304;
        return responder->respond(std::move(head));
    }
    const ByteView manifest = hub_.package->file(parse_sha256(name).value()).value();
    responder->respond_bytes(std::move(head), manifest, hub_.package);
}

Result<SignedManifest> Routes::sign_manifest_of(const ModelPackage& package) const {
    const Sha256 manifest = parse_sha256(package.manifest_sha256()).value();
    return hub_.options.signing_key->sign_manifest(manifest, package.file(manifest).value().size());
}

// Signs at each request, because the pages of --static may change. A signature takes 50 us.
void Routes::serve_signature(HttpRequest, Responder responder) const {
    const std::shared_ptr<const SigningKey>& key = hub_.options.signing_key;
    if (!key) return responder->refuse({404, "this hub signs nothing", "not_signed", ""});

    const std::string lines = hub_.assets.lines();
    const auto signed_manifest = sign_manifest_of(*hub_.package);
    const auto pages = key->sign(pages_text(lines));
    if (!signed_manifest.ok() || !pages.ok())
        return responder->refuse({500, "the hub cannot sign", "internal", ""});

    nlohmann::json answer = nlohmann::json::parse(signed_manifest_to_json(*signed_manifest));
    answer["fingerprint"] = fingerprint_of(key->public_key());
    answer["pages"] = {{"lines", lines}, {"signature", to_hex(*pages)}};
    HttpResponse response = json_answer(answer);
    response.set_header("Cache-Control", "no-store");
    responder->respond(std::move(response));
}

// `bytes` are borrowed from `package`. The request's path names these bytes by their hash.
void Routes::answer_range(const HttpRequest& request, const SharedPackage& package,
                          const Result<ByteView>& bytes, Keeps keeps,
                          WireResponder& responder) const {
    const std::string& name = request.rest;
    if (!bytes) {
        log_rarely(LogLevel::error, "http: a blob cannot be read", kv("blob", name),
                   kv("why", bytes.error().message));
        return responder.refuse({500, "the blob cannot be read", "io_error", ""});
    }
    BlobAnswer answer = answer_blob(request, bytes->size(), text('"', name, '"'));
    if (keeps == Keeps::reader)
        answer.head.set_header("Cache-Control", "private, max-age=31536000, immutable");
    if (answer.head.status == 416 || answer.head.status == 304)
        return responder.respond(std::move(answer.head));
    responder.respond_bytes(std::move(answer.head), bytes->subspan(answer.offset, answer.size),
                            package);
}

Checked<void> Routes::check_gives_model() const {
    if (!hub_.options.give_model)
        return Refusal{404, "this hub does not give its model away (--give-model off)",
                       "model_not_given", ""};
    if (!given_package()->holds_all_blobs())
        return Refusal{404, "the hub itself lacks experts of its model", "package_incomplete", ""};
    return {};
}

// Returns the package that browsers load to compute answers themselves.
const Routes::SharedPackage& Routes::given_package() const {
    return hub_.options.device_package ? hub_.options.device_package : hub_.package;
}

void Routes::list_package(HttpRequest, Responder responder) const {
    if (const auto gives = check_gives_model(); !gives.ok())
        return responder->refuse(gives.refusal());

    nlohmann::json files = nlohmann::json::array();
    std::uint64_t all_bytes = 0;
    const ModelPackage& package = *given_package();
    for (const ModelPackage::File& file : package.files()) {
        files.push_back(
            {{"name", file.name}, {"sha256", to_hex(file.sha256)}, {"bytes", file.size_bytes}});
        all_bytes += file.size_bytes;
    }
    nlohmann::json list = {{"name", package.name()},
                           {"sha256", package.manifest_sha256()},
                           {"bytes", all_bytes},
                           {"files", std::move(files)}};
    if (hub_.options.signing_key) {
        const auto manifest = sign_manifest_of(package);
        if (!manifest.ok()) return responder->refuse({500, "the hub cannot sign", "internal", ""});
        list["signed"] = nlohmann::json::parse(signed_manifest_to_json(*manifest))["manifest"];
    }
    responder->respond(json_answer(list));
}

void Routes::serve_package_file(HttpRequest request, Responder responder) const {
    if (const auto gives = check_gives_model(); !gives.ok())
        return responder->refuse(gives.refusal());

    const std::string& name = request.rest;
    const Result<Sha256> hash = parse_sha256(name);
    if (!hash || to_hex(*hash) != name)
        return responder->refuse({404, "no such file", "not_found", ""});
    const ModelPackage& package = *given_package();
    answer_checked(
        package, *hash,
        [this, hash = *hash, request = std::move(request), responder = std::move(responder)] {
            const SharedPackage& given = given_package();
            const Result<ByteView> bytes = given->file(hash);
            if (!bytes && bytes.error().code == ErrorCode::not_found)
                return responder->refuse({404, "no such file", "not_found", ""});
            answer_range(request, given, bytes, Keeps::reader, *responder);
        });
}

void Routes::serve_health(HttpRequest, Responder responder) const {
    const Health health = current_health(hub_);
    HttpResponse response;
    const bool answers = health.state == HealthState::ok || health.still_answers;
    response.status = answers ? 200 : 503;
    response.body = health_json(health, hub_.options.prompts_kept_hours).dump();
    if (response.status == 503) response.set_header("Retry-After", "2");
    responder->respond(std::move(response));
}

HttpResponse json_answer(const nlohmann::json& body) {
    HttpResponse response;
    response.body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return response;
}

void Routes::serve_status(HttpRequest request, Responder responder) const {
    const bool with_join_url = may_see_join_link(request);
    asio::post(hub_.swarm_strand, [this, with_join_url, responder = std::move(responder)] {
        if (!hub_.swarm) return responder->refuse({503, "Loading model", "unavailable", ""});
        responder->respond(json_answer(status_json(hub_, with_join_url)));
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
    const Api* const api = hub_.api;  // null while the model loads
    HttpResponse response;
    response.body = nlohmann::json{
        {"name", "moex-hub"},
        {"version", MOEX_VERSION},
        {"model", hub_.package->name()},
        {"context_tokens", hub_.package->config().context_tokens},
        {"api_key_required", hub_.keys_required},
        {"gives_model", check_gives_model().ok()},
        {"device_model", given_package()->name()},
        {"reasoning_effort", api && api->has_reasoning_effort()},
        {"join_path",
         "/join.html"}}.dump();
    responder->respond(std::move(response));
}

void Routes::serve_version(HttpRequest, Responder responder) const {
    HttpResponse response;
    response.body = nlohmann::json{{"version", MOEX_VERSION}}.dump();
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

}  // namespace moex::net
