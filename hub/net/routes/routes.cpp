#include "hub/net/routes/routes.h"

#include "hub/base/sha256.h"
#include "hub/net/health_watch.h"
#include "hub/net/routes/route.h"
#include "hub/net/routes/status.h"

namespace moex::net {

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
