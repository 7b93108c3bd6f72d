// Who may ask: Host against DNS rebinding, Origin against foreign pages, content types, and what a bearer may do. Pure.
// Source: design section 7; targets S6.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/net/http.h"

namespace moex {

struct AccessOptions {
    std::string listen_address;                 // "127.0.0.1", "0.0.0.0", "::1", ...
    std::vector<std::string> hosts;             // further names that Host may carry
    std::vector<std::string> cors_origins;      // exact origins, e.g. "https://app.example"
};

// "example.org:8080" -> {"example.org", "8080"}, "[::1]:80" -> {"::1", "80"}; lower case; nullopt when it is no authority.
struct Authority {
    std::string host, port;
    bool is_address = false;                    // an IP literal: no name to rebind
};
std::optional<Authority> parse_authority(std::string_view text);

bool is_loopback_address(std::string_view address);

class AccessPolicy {
  public:
    explicit AccessPolicy(AccessOptions options);
    bool host_allowed(std::string_view host_header) const;

    enum class Origin { none, same, allowed, foreign };
    // `none`: no Origin header. `same`: our own page. `allowed`: on the CORS list.
    Origin judge_origin(const HttpRequest& request) const;

  private:
    AccessOptions options_;
};

bool is_json_content_type(std::string_view value);
// The key of `Authorization: Bearer KEY` or `x-api-key: KEY`.
std::optional<std::string> bearer_key(const HttpRequest& request);

}  // namespace moex
