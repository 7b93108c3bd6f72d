// Rules that admit a request: Host against DNS rebinding, Origin against foreign pages, content
// types, and the key of a bearer. Pure.
// Source: RFC 6454 (origins), the Fetch standard; DNS rebinding as in Jackson et al., CCS 2007.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/api/http.h"

namespace moex::net {

struct AccessOptions {
    std::string listen_address;  // IP address of the listener: "127.0.0.1", "0.0.0.0", "::1", ...
    // Further names that the Host header may carry, as --host has them: a port and a path are
    // ignored. "*.example.org" matches names with exactly one label before ".example.org".
    std::vector<std::string> hosts;
    // Origins that may call the API, exact, e.g. "https://app.example".
    std::vector<std::string> cors_origins;
};

// The host and port of a Host header: "example.org:8080" -> {"example.org", "8080"}, "[::1]:80" ->
// {"::1", "80"}; lower case, without the dot that may end a name. Returns nullopt if `text` is no
// authority.
struct Authority {
    std::string host, port;
    bool is_address = false;  // true: `host` is an IP address, so DNS rebinding is impossible
};
std::optional<Authority> parse_authority(std::string_view text);

bool is_loopback_address(std::string_view address);

// Returns the host of an address NAME[:PORT][/PATH], lower case and without a dot at its end:
// "Hub.example:8443/moex" -> "hub.example".
std::string host_of_address(std::string_view address);

class AccessPolicy {
  public:
    explicit AccessPolicy(AccessOptions options);
    bool host_allowed(std::string_view host_header) const;

    enum class Origin { none, same, allowed, foreign };
    // `none`: no Origin header. `same`: a page of this hub. `allowed`: on the CORS list.
    Origin judge_origin(const HttpRequest& request) const;

  private:
    AccessOptions options_;
};

// Returns the hub's origin as the client names it: the scheme of the request, and its Host.
std::string own_origin(const HttpRequest& request);

// The client of a request, and how the request reached the outermost machine that the operator
// runs.
struct Client {
    std::string address;  // without port
    bool loopback = false, secure = false;
};

// The operator's reverse proxies. The X-Forwarded headers of a trusted proxy count; those of any
// other client are ignored.
class TrustedProxies {
  public:
    explicit TrustedProxies(const std::vector<std::string>& addresses);
    bool trusts(std::string_view address) const;
    // Returns `peer` itself, unless `peer` is trusted. For a trusted peer the result has the last
    // address of X-Forwarded-For that is not trusted, and the last word of X-Forwarded-Proto.
    Client client_of(std::string_view peer, bool secure,
                     const std::vector<std::pair<std::string, std::string>>& headers) const;

  private:
    std::vector<std::string> addresses_;
};
// Returns an IP address in its canonical spelling: lower case, no port, no brackets, IPv4 not
// mapped into IPv6. Returns nullopt if `text` is no IP address.
std::optional<std::string> plain_address(std::string_view text);

bool is_json_content_type(std::string_view value);
// Returns the key of `Authorization: Bearer KEY` or of `x-api-key: KEY`.
std::optional<std::string> bearer_key(const HttpRequest& request);

}  // namespace moex::net
