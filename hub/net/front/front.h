// `moex-hub front`: a server without a model. It holds the connections of clients, passes their
// requests to the hubs of a fleet, and lets a stream go on at another hub when its hub is gone. Any
// number of fronts may run; they share nothing.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hub/net/front/front_context.h"
#include "hub/registry/postgres_address.h"

namespace moex::net {

struct FrontOptions {
    std::string listen_address;
    std::uint16_t port = 0;
    std::string tls_cert, tls_key;  // both or none
    std::string hub_ca_file;        // of https addresses of hubs; empty: the system's certificates
    std::vector<std::string> hub_urls;
    std::string store_url;                     // of the membership; empty: `hub_urls` alone
    std::vector<std::string> trusted_proxies;  // their X-Forwarded-For counts
    std::size_t connections_max = 4096;
    std::uint64_t body_bytes_max = 64u << 20;  // of all requests that are not answered yet
};

class Front {
  public:
    // Binds to the address at once. Throws std::runtime_error with a sentence if this fails.
    Front(FrontOptions options, const FleetKey& key);
    ~Front();
    std::string base_url() const;
    // Serves until SIGINT or SIGTERM; then it takes no more requests, and ends when all have ended,
    // or after 30 s, or at a second signal.
    void run();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex::net
