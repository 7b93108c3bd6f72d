// The access rules of the route table (route.h), and the handlers that do not belong to the API.
// The rules are in route_checks.cpp, handlers that send files in file_routes.cpp.
// The route of a request is decided once, from its head. Deny by default: a path that is neither in
// the table nor an embedded page gets 404.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "hub/api/refusal.h"
#include "hub/net/hub_context.h"

namespace moex::net {

// A responder that can also send borrowed bytes. It keeps the owner of the bytes alive.
class WireResponder : public ByteResponder {
  public:
    using ByteResponder::ByteResponder;
    virtual void respond_bytes(HttpResponse head, ByteView bytes,
                               std::shared_ptr<const void> keep) = 0;
};

// Returns 200 with `body`. Bytes that are not UTF-8 are replaced.
HttpResponse json_answer(const nlohmann::json& body);

struct Route;  // a row of the route table; see route.h

// The result of the check of a request's head: the route that the request may use.
struct Admission {
    const Route* route = nullptr;
    bool is_preflight = false;   // OPTIONS request: answered from the route's row alone
    bool is_upgrade = false;     // the client requests a WebSocket; admit_worker() decides
    std::string key_hash;        // hash of the key whose rate limit applies; empty: no key required
    std::optional<KeyInfo> key;  // key of a request that uses the model; nullopt: counted as local
};

// The result of the check of a worker's upgrade request.
struct WorkerAdmission {
    bool authorized = false;  // the Bearer header has a valid join token
};

class Routes {
  public:
    explicit Routes(HubContext& hub) : hub_(hub) {}
    // Checks the head of a request: Host, Origin, route, method, key, content type, whether the hub
    // accepts work, and rate limits. The call counts against the limits, so it is made once per
    // request, before the body is read.
    Checked<Admission> admit(const HttpRequest& head) const;
    // Answers a request that admit() has admitted; upgrade requests are not passed here.
    void handle(const Admission& admission, HttpRequest request,
                std::shared_ptr<WireResponder> responder) const;
    // Checks the further rules of an upgrade request for /worker. This call counts against the
    // limits too.
    Checked<WorkerAdmission> admit_worker(const HttpRequest& request) const;
    // Returns the value of the Access-Control-Allow-Origin header; empty: the answer has no such
    // header.
    std::string cors_origin(const HttpRequest& request) const;

    // The handlers of the route table.
    using Responder = std::shared_ptr<WireResponder>;
    void serve_asset(HttpRequest request, Responder responder) const;
    void serve_blob(HttpRequest request, Responder responder) const;
    void serve_manifest(HttpRequest request, Responder responder) const;
    void serve_signature(HttpRequest request, Responder responder) const;
    void list_package(HttpRequest request, Responder responder) const;
    void serve_package_file(HttpRequest request, Responder responder) const;
    void serve_health(HttpRequest request, Responder responder) const;
    void serve_lend(HttpRequest request, Responder responder) const;
    void serve_contributors(HttpRequest request, Responder responder) const;
    void forget_contributor(HttpRequest request, Responder responder) const;
    void serve_status(HttpRequest request, Responder responder) const;
    void serve_metrics(HttpRequest request, Responder responder) const;
    void serve_info(HttpRequest request, Responder responder) const;
    void serve_version(HttpRequest request, Responder responder) const;
    void serve_openapi(HttpRequest request, Responder responder) const;
    void serve_test(HttpRequest request, Responder responder) const;
    // Handlers that wait for the disk, and handlers of the operator's routes; see
    // registry_routes.cpp.
    void serve_history(HttpRequest request, Responder responder) const;
    void list_keys(HttpRequest request, Responder responder) const;
    void make_key(HttpRequest request, Responder responder) const;
    void revoke_key(HttpRequest request, Responder responder) const;
    void show_join_link(HttpRequest request, Responder responder) const;
    void rotate_join_link(HttpRequest request, Responder responder) const;
    void show_settings(HttpRequest request, Responder responder) const;
    void claim_admin(HttpRequest request, Responder responder) const;
    // The operator's orders to workers; see worker_routes.cpp.
    void drain_worker(HttpRequest request, Responder responder) const;
    void pin_worker(HttpRequest request, Responder responder) const;
    void ban_worker(HttpRequest request, Responder responder) const;
    void list_bans(HttpRequest request, Responder responder) const;
    void lift_ban(HttpRequest request, Responder responder) const;
    void refuse_plain_worker(HttpRequest request, Responder responder) const;
    // `method`: a handler of Api.
    template <auto method>
    void ask_api(HttpRequest request, Responder responder) const;

  private:
    Checked<Admission> judge_head(const HttpRequest& head) const;
    Checked<void> check_wanted_hub(const HttpRequest& request) const;
    Checked<WorkerAdmission> judge_worker(const HttpRequest& request) const;
    Checked<void> check_origin(const HttpRequest& request) const;
    Checked<void> check_method(const HttpRequest& request, const Route& route) const;
    Checked<void> check_key(const HttpRequest& request, Role role) const;
    Checked<void> check_key_and_rate(const HttpRequest& request, Role role) const;
    Checked<void> check_body_type(const HttpRequest& head, const Route& route) const;
    Checked<void> check_no_foreign_page(const HttpRequest& head) const;
    Checked<void> check_work(const HttpRequest& request, Admission& admission) const;
    Checked<void> check_cost(const Admission& admission, const HttpRequest& request) const;
    Checked<void> check_host(const HttpRequest& request, const Route& route) const;
    Checked<void> check_join_token(const HttpRequest& request) const;
    Checked<void> check_own_page(const HttpRequest& request) const;
    Checked<void> check_gives_model() const;
    Checked<void> slow_down(const HttpRequest& request, Refusal refusal) const;
    // `anybody`: a shared cache may store the answer. `reader`: only the client's cache may.
    enum class Keeps { anybody, reader };
    using SharedPackage = std::shared_ptr<const ModelPackage>;
    void answer_range(const HttpRequest& request, const SharedPackage& package,
                      const Result<ByteView>& bytes, Keeps keeps, WireResponder& responder) const;
    void answer_checked(const ModelPackage& package, const Sha256& hash,
                        std::function<void()> answer) const;
    const SharedPackage& given_package() const;
    Result<SignedManifest> sign_manifest_of(const ModelPackage& package) const;
    bool may_see_join_link(const HttpRequest& request) const;
    template <class Answer>
    void answer_from_disk(Responder responder, Answer answer) const;
    Checked<HttpResponse> join_answer() const;
    Checked<void> order_worker(WorkerId worker, WorkerOrder order) const;
    void order_by_body(const HttpRequest& request, Responder responder, WorkerOrder begin,
                       WorkerOrder end, const char* what) const;
    void answer_preflight(const Route& route, const HttpRequest& request,
                          WireResponder& responder) const;

    HubContext& hub_;
};

template <auto method>
void Routes::ask_api(HttpRequest request, Responder responder) const {
    const std::shared_lock attached(hub_.attached_mutex);
    if (Api* api = hub_.api) return (api->*method)(std::move(request), std::move(responder));
    ++hub_.requests_refused;
    responder->refuse(refuse_for_now(503, "Loading model", "unavailable", 2s));
}

// A row of the route table, as other rooms and tests see it.
struct RouteInfo {
    std::string method, path;
    bool is_public = false;  // the route needs no key, even beyond loopback
    bool is_hosts = false;   // needs the admin key, on loopback too; only own pages or no page
    bool is_join = false;    // as is_hosts, but needs the join token
};
std::vector<RouteInfo> server_routes();
// Returns the dialect of errors about a request.
Dialect dialect_of(const HttpRequest& request);

}  // namespace moex::net
