// Who may ask for what, and who answers: the route table, the
// rules in front of it, and the handlers that are not the API's.
// Deny by default: what is not in the table, or among the embedded pages, is 404.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hub/net/hub_context.h"

namespace moex::net {

// A responder that can also send bytes it borrows, with their owner.
class WireResponder : public HttpResponder {
  public:
    virtual void respond_bytes(HttpResponse head, ByteView bytes,
                               std::shared_ptr<const void> keep) = 0;
};

struct UpgradeVerdict {
    std::optional<HttpResponse> refusal;
    bool authorized = false;  // a good token came as Bearer
};

class Routes {
  public:
    explicit Routes(HubContext& hub) : hub_(hub) {}
    // Everything that a request's head decides: Host, Origin, route,
    // method, key, content type, whether there is work to give, rate.
    // Counted and rated: ask once per request, before its body is read.
    std::optional<HttpResponse> refuse_by_head(const HttpRequest& head) const;
    // Requires that refuse_by_head() let it pass.
    void handle(HttpRequest request, std::shared_ptr<WireResponder> responder) const;
    bool is_upgrade(const HttpRequest& request) const {
        return request.path == "/worker" && request.method == "GET";
    }
    UpgradeVerdict judge_upgrade(const HttpRequest& request) const;
    // The origin to name in Access-Control-Allow-Origin; empty when none.
    std::string cors_origin(const HttpRequest& request) const;

  private:
    enum class Access { open, api, admin };
    std::optional<HttpResponse> judge_head(const HttpRequest& head) const;
    std::optional<HttpResponse> refuse_by_origin(const HttpRequest& request) const;
    std::optional<HttpResponse> refuse_by_key(const HttpRequest& request, Access access) const;
    bool is_admin(const HttpRequest& request) const;
    void serve_asset(const HttpRequest& request, WireResponder& responder) const;
    void serve_blob(const HttpRequest& request, WireResponder& responder) const;
    void serve_health(std::shared_ptr<WireResponder> responder) const;
    void serve_status(const HttpRequest& request, std::shared_ptr<WireResponder> responder) const;
    void serve_metrics(std::shared_ptr<WireResponder> responder) const;
    void serve_info(WireResponder& responder) const;
    void serve_test(const HttpRequest& request, std::shared_ptr<WireResponder> responder) const;

    HubContext& hub_;
};

// The route table as others may read it.
struct RouteInfo {
    std::string method, path;
    bool is_public = false;  // open without a key off loopback
};
std::vector<RouteInfo> server_routes();

}  // namespace moex::net
