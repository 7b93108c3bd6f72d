// Who may ask for what, and who answers: the rules in front of the route table (route.h),
// and the handlers that are not the API's. A request's route is decided once, from its head.
// Deny by default: what is not in the table, or among the embedded pages, is 404.
#pragma once

#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "hub/api/refusal.h"
#include "hub/net/hub_context.h"

namespace moex::net {

// A responder that can also send bytes it borrows, with their owner.
class WireResponder : public HttpResponder {
  public:
    using HttpResponder::HttpResponder;
    virtual void respond_bytes(HttpResponse head, ByteView bytes,
                               std::shared_ptr<const void> keep) = 0;
};

// 200 with `body`; bytes in it that are no UTF-8 are replaced.
HttpResponse json_answer(const nlohmann::json& body);

struct Route;  // a row of the table; route.h

// What a request's head was let in to.
struct Admission {
    const Route* route = nullptr;
    bool is_preflight = false;  // OPTIONS: answered from the row alone
    bool is_upgrade = false;    // a WebSocket is asked for; admit_worker() decides
    std::string key_hash;       // of the API key that work counts against; empty: none is asked for
    std::optional<KeyInfo> key;  // that came with work and is known; none: it counts as local
};

// What a worker's upgrade request was let in with.
struct WorkerAdmission {
    bool authorized = false;  // a good token came as Bearer
};

class Routes {
  public:
    explicit Routes(HubContext& hub) : hub_(hub) {}
    // Everything that a request's head decides: Host, Origin, route,
    // method, key, content type, whether there is work to give, rate.
    // Counted and rated: ask once per request, before its body is read.
    Checked<Admission> admit(const HttpRequest& head) const;
    // Answers what admit() let in, unless it is an upgrade.
    void handle(const Admission& admission, HttpRequest request,
                std::shared_ptr<WireResponder> responder) const;
    // The further rules of an upgrade. Counted and rated, too.
    Checked<WorkerAdmission> admit_worker(const HttpRequest& request) const;
    // The origin to name in Access-Control-Allow-Origin; empty when none.
    std::string cors_origin(const HttpRequest& request) const;

    // The handlers that the table names.
    using Responder = std::shared_ptr<WireResponder>;
    void serve_asset(HttpRequest request, Responder responder) const;
    void serve_blob(HttpRequest request, Responder responder) const;
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
    // What waits for the disk, and the host's; registry_routes.cpp.
    void serve_history(HttpRequest request, Responder responder) const;
    void list_keys(HttpRequest request, Responder responder) const;
    void make_key(HttpRequest request, Responder responder) const;
    void revoke_key(HttpRequest request, Responder responder) const;
    void show_join_link(HttpRequest request, Responder responder) const;
    void rotate_join_link(HttpRequest request, Responder responder) const;
    void show_settings(HttpRequest request, Responder responder) const;
    void claim_admin(HttpRequest request, Responder responder) const;
    // What the host orders of workers; worker_routes.cpp.
    void drain_worker(HttpRequest request, Responder responder) const;
    void pin_worker(HttpRequest request, Responder responder) const;
    void ban_worker(HttpRequest request, Responder responder) const;
    void list_bans(HttpRequest request, Responder responder) const;
    void lift_ban(HttpRequest request, Responder responder) const;
    void refuse_plain_worker(HttpRequest request, Responder responder) const;
    template <void (Api::*method)(HttpRequest, Api::Responder)>
    void ask_api(HttpRequest request, Responder responder) const;

  private:
    Checked<Admission> judge_head(const HttpRequest& head) const;
    Checked<WorkerAdmission> judge_worker(const HttpRequest& request) const;
    Checked<void> check_origin(const HttpRequest& request) const;
    Checked<void> check_method(const HttpRequest& request, const Route& route) const;
    Checked<void> check_key(const HttpRequest& request, Role role) const;
    Checked<void> check_key_and_rate(const HttpRequest& request, Role role) const;
    Checked<void> check_work(const HttpRequest& request, Admission& admission) const;
    Checked<void> check_cost(const Admission& admission, const HttpRequest& request) const;
    Checked<void> check_host(const HttpRequest& request, const Route& route) const;
    Checked<void> check_join_token(const HttpRequest& request) const;
    Checked<void> check_own_page(const HttpRequest& request) const;
    Checked<void> check_gives_model() const;
    Checked<void> slow_down(const HttpRequest& request, Refusal refusal) const;
    enum class Keeps { anybody, reader };  // a cache between may keep the answer, or may not
    void answer_range(const HttpRequest& request, const Result<ByteView>& bytes, Keeps keeps,
                      WireResponder& responder) const;
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

template <void (Api::*method)(HttpRequest, Api::Responder)>
void Routes::ask_api(HttpRequest request, Responder responder) const {
    const std::shared_lock attached(hub_.attached_mutex);
    if (Api* api = hub_.api) return (api->*method)(std::move(request), std::move(responder));
    ++hub_.requests_refused;
    responder->refuse(refuse_for_now(503, "Loading model", "unavailable", 2s));
}

// The route table as others may read it.
struct RouteInfo {
    std::string method, path;
    bool is_public = false;  // open without a key off loopback
    bool is_hosts = false;   // wants the admin key on loopback too, from our own pages or from none
    bool is_join = false;    // the same with the join token
};
std::vector<RouteInfo> server_routes();
// What is said about a request for `path`, whoever says it.
Dialect dialect_of(std::string_view path);

}  // namespace moex::net
