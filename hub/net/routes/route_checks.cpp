// The access rules: checks of a request's head, and of the upgrade request of a worker.
#include "hub/base/log.h"
#include "hub/base/sha256.h"
#include "hub/net/http/handshake.h"
#include "hub/net/routes/route.h"
#include "hub/net/routes/routes.h"

namespace moex::net {
namespace {

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

}  // namespace moex::net
