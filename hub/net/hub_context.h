// What the parts of this room share: options, what stands behind the door, and counts. One per Server; outlives its connections' handlers.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "hub/net/access.h"
#include "hub/net/asio.h"
#include "hub/net/assets.h"
#include "hub/net/metrics.h"
#include "hub/net/rate_limits.h"
#include "hub/net/server.h"

namespace moex::net {

// The connections that live now, so that the end of the server can end them. Thread-safe; shared with each connection, whatever dies first.
class LiveConnections {
  public:
    // `shut` may be called from any thread.
    std::uint64_t add(std::function<void()> shut) {
        const std::lock_guard lock(mutex_);
        shuts_.emplace(++last_id_, std::move(shut));
        return last_id_;
    }
    void remove(std::uint64_t id) {
        const std::lock_guard lock(mutex_);
        shuts_.erase(id);
    }
    std::size_t size() const {
        const std::lock_guard lock(mutex_);
        return shuts_.size();
    }
    void shut_all() {
        std::map<std::uint64_t, std::function<void()>> shuts;
        {
            const std::lock_guard lock(mutex_);
            shuts = shuts_;
        }
        for (const auto& [id, shut] : shuts) shut();
    }

  private:
    mutable std::mutex mutex_;
    std::map<std::uint64_t, std::function<void()>> shuts_;
    std::uint64_t last_id_ = 0;
};

struct HubContext {
    HubContext(ServerOptions options_in, std::shared_ptr<const ModelPackage> package_in, Registry& registry_in)
        : options(std::move(options_in)), package(std::move(package_in)), registry(registry_in),
          access({options.listen_address, options.hosts, options.cors_origins}), rates(options.rates), assets(options.static_directory) {}

    const ServerOptions options;
    const std::shared_ptr<const ModelPackage> package;
    Registry& registry;
    const AccessPolicy access;
    RateLimits rates;
    const Assets assets;
    Metrics metrics;
    const TimePoint started = now_steady();
    bool keys_required = false;
    std::string base_url, join_url;

    asio::io_context io;
    asio::strand<asio::io_context::executor_type> swarm_strand{io.get_executor()};

    std::atomic<SwarmBackend*> swarm{nullptr};   // null before attach() and after the end
    std::atomic<Engine*> engine{nullptr};
    std::atomic<Api*> api{nullptr};
    std::atomic<bool> draining{false};
    std::atomic<std::uint32_t> active_requests{0};
    std::atomic<std::uint64_t> requests_refused{0};
    std::atomic<double> decode_tokens_per_s{0};
    const std::shared_ptr<LiveConnections> http_connections = std::make_shared<LiveConnections>();
    const std::shared_ptr<LiveConnections> worker_connections = std::make_shared<LiveConnections>();
    std::map<std::string, std::uint32_t> workers_by_address;   // swarm strand only
};

}  // namespace moex::net
