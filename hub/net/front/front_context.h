// The state that the connections of a front share.
#pragma once

#include <atomic>
#include <memory>

#include "hub/net/access/access.h"
#include "hub/net/front/hub_list.h"
#include "hub/net/http/asio.h"
#include "hub/net/http/byte_budget.h"
#include "hub/net/http/request_gate.h"
#include "hub/registry/fleet_key.h"

namespace moex::net {

struct FrontContext {
    FrontContext(const FleetKey& fleet_key, const std::vector<std::string>& trusted_proxies,
                 std::uint64_t body_bytes_max = 64u << 20)
        : key(fleet_key),
          proxies(trusted_proxies),
          body_bytes(body_bytes_max) {}
    const FleetKey key;
    const TrustedProxies proxies;
    HubList hubs;
    std::shared_ptr<ssl::context> hub_tls;  // of https addresses of hubs
    GateLimits gate;
    asio::io_context io;
    std::size_t connections_max = 0;
    // Of requests: a front keeps them until they are answered, since it may ask another hub. It
    // looks at no key, so that any client can fill this.
    ByteBudget body_bytes;
    // A client that reads nothing of an answer for this long is closed.
    Duration unread_within = std::chrono::seconds(60);
    std::atomic<std::size_t> connections{0};
    std::atomic<std::uint64_t> requests{0};  // that run
    std::atomic<std::uint64_t> followed{0};  // streams that went on at another hub
    std::atomic<std::uint64_t> repeated{0};  // requests that were sent again from the beginning
    std::atomic<std::uint64_t> failed{0};    // requests that no hub could answer
};

}  // namespace moex::net
