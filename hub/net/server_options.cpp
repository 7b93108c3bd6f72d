#include "hub/net/server_options.h"

#include "hub/net/access/access.h"

namespace moex::net {

Status check_address(const ServerOptions& options) {
    if (is_loopback_address(options.listen_address) || !options.tls_cert.empty() ||
        options.insecure_http)
        return {};
    return Error{ErrorCode::invalid_argument,
                 text(options.listen_address,
                      ": off loopback the hub wants TLS (--tls-cert and --tls-key; `moex-hub cert` "
                      "makes them) or an explicit --insecure-http")};
}

bool keys_required(const ServerOptions& options) {
    return options.require_keys || !options.trusted_proxies.empty() ||
           !is_loopback_address(options.listen_address);
}

}  // namespace moex::net
