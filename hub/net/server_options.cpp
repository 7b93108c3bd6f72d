#include "hub/net/server_options.h"

#include "hub/net/access/access.h"

namespace moex::net {

bool keys_required(const ServerOptions& options) {
    return options.require_keys || !options.trusted_proxies.empty() ||
           !is_loopback_address(options.listen_address);
}

}  // namespace moex::net
