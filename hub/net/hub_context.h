// The state that the parts of this room share: options, the rooms that answer requests (swarm,
// engine, API), and counters. There is one HubContext per Server. It outlives the handlers of its
// connections.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "hub/api/api.h"
#include "hub/base/num_cores.h"
#include "hub/dispatch/core/swarm_backend.h"
#include "hub/net/access/access.h"
#include "hub/net/access/access_log.h"
#include "hub/net/access/key_accounts.h"
#include "hub/net/access/rate_limits.h"
#include "hub/net/assets.h"
#include "hub/net/contributors.h"
#include "hub/net/health/health.h"
#include "hub/net/health/host_state.h"
#include "hub/net/health/metrics.h"
#include "hub/net/http/asio.h"
#include "hub/net/http/byte_budget.h"
#include "hub/net/server_options.h"
#include "hub/registry/registry.h"

namespace moex::net {

// Lists the open connections, so that the server can close them when it stops. Thread-safe. Each
// connection shares ownership, so the order of destruction does not matter.
class LiveConnections {
  public:
    // Adds a connection. `shut` closes it, and may be called from any thread. `peer` is the
    // rate_key of the remote address.
    std::uint64_t add(std::string peer, std::function<void()> shut) {
        const std::lock_guard lock(mutex_);
        ++by_peer_[peer];
        live_.emplace(++last_id_, Live{std::move(peer), std::move(shut)});
        return last_id_;
    }
    void remove(std::uint64_t id) {
        const std::lock_guard lock(mutex_);
        const auto found = live_.find(id);
        if (found == live_.end()) return;

        const auto count = by_peer_.find(found->second.peer);
        if (--count->second == 0) by_peer_.erase(count);
        live_.erase(found);
    }
    std::size_t size() const {
        const std::lock_guard lock(mutex_);
        return live_.size();
    }
    std::size_t count_of(const std::string& peer) const {
        const std::lock_guard lock(mutex_);
        const auto found = by_peer_.find(peer);
        return found == by_peer_.end() ? 0 : found->second;
    }
    void shut_all() {
        std::vector<std::function<void()>> shuts;
        {
            const std::lock_guard lock(mutex_);
            for (const auto& [id, live] : live_) shuts.push_back(live.shut);
        }
        for (const auto& shut : shuts) shut();
    }

  private:
    struct Live {
        std::string peer;
        std::function<void()> shut;
    };
    mutable std::mutex mutex_;
    std::map<std::uint64_t, Live> live_;
    std::unordered_map<std::string, std::size_t> by_peer_;
    std::uint64_t last_id_ = 0;
};

// The options that the operator may change while the hub runs. The struct is replaced as a whole: a
// request keeps the options that were in force when the request began.
struct LiveOptions {
    AccessPolicy access;
    bool has_cors_origins = false;
    std::uint32_t connections_max = 0, connections_per_address_max = 0;
    Duration drain_within{};
};

struct HubContext {
    // `hosts` has every name that the Host header may carry, including the names of the
    // certificate.
    HubContext(ServerOptions options_in, std::shared_ptr<const ModelPackage> package_in,
               Registry& registry_in, std::vector<std::string> hosts)
        : options(std::move(options_in)),
          package(std::move(package_in)),
          registry(registry_in),
          proxies(options.trusted_proxies),
          rates(options.rates),
          accounts(registry_in),
          assets(options.static_directory),
          access_log(options.access_log, options.access_log_json) {
        change(options, std::move(hosts));
    }

    // Returns the options in force. Any thread may call it.
    std::shared_ptr<const LiveOptions> live() const {
        const std::lock_guard lock(live_mutex_);
        return live_;
    }
    // Takes from `fresh` the options that may change while the hub runs. The other options keep the
    // values that they had when the hub started.
    void change(const ServerOptions& fresh, std::vector<std::string> hosts) {
        auto next = std::make_shared<const LiveOptions>(LiveOptions{
            .access = AccessPolicy({options.listen_address, std::move(hosts), fresh.cors_origins}),
            .has_cors_origins = !fresh.cors_origins.empty(),
            .connections_max = fresh.connections_max,
            .connections_per_address_max = fresh.connections_per_address_max,
            .drain_within = fresh.drain_within});
        rates.change(fresh.rates);
        const std::lock_guard lock(live_mutex_);
        live_ = std::move(next);
    }

    const ServerOptions options;
    const std::shared_ptr<const ModelPackage> package;
    Registry& registry;
    const TrustedProxies proxies;
    RateLimits rates;
    KeyAccounts accounts;
    // Bytes of the request bodies that are being read.
    ByteBudget body_bytes{options.body_bytes_in_flight_max};
    const Assets assets;
    AccessLog access_log;
    Metrics metrics;
    const TimePoint started = now_steady();
    bool keys_required = false;
    std::string base_url;
    // Returns the join link with the current token, which the operator may rotate. Any thread may
    // call it.
    Result<std::string> join_url() const {
        MOEX_ASSIGN(token, registry.join_token());
        return text(base_url, "/join.html#token=", token);
    }

    asio::io_context io;
    asio::strand<asio::io_context::executor_type> swarm_strand{io.get_executor()};

    // The rooms that answer requests; null before attach() and after the stop. Swarm and engine are
    // used on the swarm strand, which also resets them to null. The Api, and the objects that it
    // gave to connections, are used on any strand that holds `attached_mutex` shared.
    std::shared_mutex attached_mutex;
    std::atomic<SwarmBackend*> swarm{nullptr};
    std::atomic<Engine*> engine{nullptr};
    std::atomic<Api*> api{nullptr};
    std::atomic<bool> draining{false};
    std::atomic<std::uint32_t> active_requests{0};
    std::atomic<std::uint64_t> requests_refused{0};
    std::atomic<double> decode_tokens_per_s{0};
    std::atomic<std::uint32_t> workers_connected{0};
    // What the workers of a hub in a fleet hold, some seconds ago (UnitCopies).
    std::atomic<std::uint32_t> units{0}, units_missing{0}, units_thin{0};
    // Number of answers that have begun, and the sum of their times to the first token in
    // microseconds. The history uses both.
    std::atomic<std::uint64_t> answers_begun{0}, first_token_us{0};
    Contributors contributors{registry};  // swarm strand
    HealthBoard health;                   // health of the swarm; see current_health()
    HostBoard host;                       // certificate and disk; see HostWatch
    const std::shared_ptr<LiveConnections> http_connections = std::make_shared<LiveConnections>();
    const std::shared_ptr<LiveConnections> worker_connections = std::make_shared<LiveConnections>();

  private:
    mutable std::mutex live_mutex_;
    std::shared_ptr<const LiveOptions> live_;

  public:
    // Runs answers that wait for the disk. The thread ends before the members above, which it uses,
    // are destroyed.
    asio::thread_pool disk_thread{1};
    // Compute the SHA-256 of blobs before they are served for the first time. The threads end as
    // early as the disk thread does.
    asio::thread_pool hash_threads{std::clamp(num_cores() / 4, 1u, 8u)};
    WholeLayers layers;  // set before run()
};

}  // namespace moex::net
