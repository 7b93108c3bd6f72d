// Orders of the operator to workers: drain, pin (the worker keeps the experts that it holds) and
// ban; also the list of bans.
#include <ctime>

#include "hub/base/log.h"
#include "hub/net/routes/host_bodies.h"
#include "hub/net/routes/routes.h"

namespace moex::net {
namespace {

using nlohmann::json;

constexpr std::int64_t ban_day_s = 86'400;

Checked<WorkerId> worker_field(const json& body) {
    constexpr WorkerId none = 0;
    MOEX_OR_REFUSE(id, number_field(body, "worker", std::uint64_t{1} << 53, none));
    if (id == none)
        return Refusal{400, "'worker' has to be the number of one", "invalid_value", "worker"};
    return id;
}

// Reads the field `on`: true begins the order, and false ends it. A body without this field begins
// the order.
Checked<bool> on_field(const json& body) {
    const auto found = body.find("on");
    if (found == body.end()) return true;
    if (!found->is_boolean())
        return Refusal{400, "'on' has to be true or false", "invalid_value", "on"};
    return found->get<bool>();
}

json ban_json(const Ban& ban, std::int64_t now_s) {
    return {{"worker_key", ban.worker_key},   {"nickname", ban.nickname},
            {"reason", ban.reason},           {"times", ban.times},
            {"banned_s", ban.banned_s},       {"until_s", ban.until_s},
            {"is_over", ban.until_s <= now_s}};
}

}  // namespace

// Gives an order to a worker. Runs on the swarm strand. The swarm may be detached already.
Checked<void> Routes::order_worker(WorkerId worker, WorkerOrder order) const {
    SwarmBackend* swarm = hub_.swarm;
    if (!swarm) return Refusal{503, "Loading model", "unavailable", ""};
    const Status done = swarm->order(worker, order);
    if (!done.ok()) return refusal_to_host(done.error());
    return {};
}

void Routes::order_by_body(const HttpRequest& request, Responder responder, WorkerOrder begin,
                           WorkerOrder end, const char* what) const {
    const auto read = [&]() -> Checked<std::pair<WorkerId, bool>> {
        MOEX_OR_REFUSE(body, object_of(request));
        MOEX_OR_REFUSE(worker, worker_field(body));
        MOEX_OR_REFUSE(on, on_field(body));
        return std::pair(worker, on);
    }();
    if (!read.ok()) return responder->refuse(read.refusal());

    asio::post(hub_.swarm_strand, [this, wish = *read, begin, end, what, id = request.id,
                                   responder = std::move(responder)] {
        const auto [worker, on] = wish;
        const Checked<void> done = order_worker(worker, on ? begin : end);
        if (!done.ok()) return responder->refuse(done.refusal());
        log_info("http: a worker was given an order", kv("worker", worker), kv("order", what),
                 kv("on", on), kv("request", id));
        responder->respond(json_answer({{"worker", worker}, {"on", on}}));
    });
}

void Routes::drain_worker(HttpRequest request, Responder responder) const {
    order_by_body(request, std::move(responder), WorkerOrder::drain, WorkerOrder::use, "drain");
}

void Routes::pin_worker(HttpRequest request, Responder responder) const {
    order_by_body(request, std::move(responder), WorkerOrder::pin, WorkerOrder::unpin, "pin");
}

// Writes the ban to the registry first, and then removes the worker, so that a worker which
// reconnects at once is refused.
void Routes::ban_worker(HttpRequest request, Responder responder) const {
    constexpr std::uint64_t days_default = 30, days_max = 36'500;
    struct Wish {
        WorkerId worker;
        std::int64_t least_s;
    };
    const auto read = [&]() -> Checked<Wish> {
        MOEX_OR_REFUSE(body, object_of(request));
        MOEX_OR_REFUSE(worker, worker_field(body));
        MOEX_OR_REFUSE(days, number_field(body, "days", days_max, days_default));
        return Wish{worker, static_cast<std::int64_t>(days) * ban_day_s};
    }();
    if (!read.ok()) return responder->refuse(read.refusal());

    asio::post(
        hub_.swarm_strand, [this, wish = *read, id = request.id, responder = std::move(responder)] {
            SwarmBackend* swarm = hub_.swarm;
            const auto view = swarm ? swarm->core().worker(wish.worker) : std::nullopt;
            // A worker without a key cannot be banned; order_worker() makes the refusal.
            if (!view || view->worker_key.empty()) {
                const Checked<void> done = order_worker(wish.worker, WorkerOrder::ban);
                return responder->refuse(done.ok() ? Refusal{404, "it has left", "not_found", ""}
                                                   : done.refusal());
            }
            asio::post(hub_.disk_thread, [this, wish, id, view = *view, responder] {
                const std::int64_t now_s = std::time(nullptr);
                const auto ban = hub_.registry.bans().add(
                    view.worker_key, view.nickname, "order of the operator", now_s, wish.least_s);
                if (!ban.ok()) return responder->refuse(refusal_to_host(ban.error()));
                log_warn("http: the operator banned a worker", kv("worker", wish.worker),
                         kv("days", wish.least_s / ban_day_s), kv("request", id));
                asio::post(hub_.swarm_strand, [this, wish, ban = *ban, now_s, responder] {
                    // The worker may have disconnected meanwhile.
                    (void)order_worker(wish.worker, WorkerOrder::ban);
                    responder->respond(json_answer(ban_json(ban, now_s)));
                });
            });
        });
}

void Routes::list_bans(HttpRequest, Responder responder) const {
    asio::post(hub_.disk_thread, [this, responder = std::move(responder)] {
        const std::int64_t now_s = std::time(nullptr);
        json bans = json::array();
        for (const Ban& ban : hub_.registry.bans().list()) bans.push_back(ban_json(ban, now_s));
        responder->respond(json_answer({{"bans", std::move(bans)}}));
    });
}

void Routes::lift_ban(HttpRequest request, Responder responder) const {
    const auto key = [&]() -> Checked<std::string> {
        MOEX_OR_REFUSE(body, object_of(request));
        return string_field(body, "worker_key");
    }();
    if (!key.ok()) return responder->refuse(key.refusal());

    asio::post(
        hub_.disk_thread, [this, key = *key, id = request.id, responder = std::move(responder)] {
            const auto lifted = hub_.registry.bans().lift(key);
            if (!lifted.ok()) return responder->refuse(refusal_to_host(lifted.error()));
            log_info("http: a ban was lifted", kv("nickname", lifted->nickname), kv("request", id));
            responder->respond(json_answer(ban_json(*lifted, std::time(nullptr))));
        });
}

}  // namespace moex::net
