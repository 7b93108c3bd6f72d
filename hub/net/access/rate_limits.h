// Token buckets per address and per key, and bans per address. An address
// is an IPv4 address or an IPv6 /64: what one person usually holds.
// Thread-safe: one mutex around a bounded table; `now` is given, so tests need no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "hub/base/clock.h"

namespace moex::net {

struct RateOptions {
    double worker_connects_per_minute = 10, worker_connects_burst = 20;
    double hello_failures_per_minute = 5;  // beyond it the address is banned from /worker
    Duration ban = std::chrono::minutes(10);
    double api_requests_per_minute = 600, api_requests_burst = 200;
    // of one API key, wherever it is used
    double key_requests_per_minute = 1200, key_requests_burst = 400;
    // of request bodies that are read as text: what JSON, templates and tokenising cost
    double text_bytes_per_minute = 64 << 20, text_bytes_burst = 16 << 20;
    double key_text_bytes_factor = 2;    // of one API key, times as many
    double loopback_factor = 100;        // one's own machine: generous, still bounded
    std::size_t addresses_max = 16'384;  // remembered; the longest unseen is forgotten
};

// "2001:db8:1:2:3:4:5:6" becomes "2001:db8:1:2::/64";
// ::ffff:a.b.c.d becomes a.b.c.d; the rest stays.
std::string rate_key(std::string_view address);

class RateLimits {
  public:
    explicit RateLimits(RateOptions options);
    ~RateLimits();
    // From now on; what was used stays used.
    void change(const RateOptions& options);
    // Zero: go on. Otherwise how long to wait: the Retry-After.
    Duration worker_connect(TimePoint now, const std::string& address, bool loopback);
    Duration api_request(TimePoint now, const std::string& address, bool loopback);
    // The cost of a text of `bytes`: of its address, and of its key where it has one.
    Duration text_bytes(TimePoint now, const std::string& address, const std::string& key,
                        bool loopback, std::uint64_t bytes);
    // `key` is one that the registry knows, or its hash: so there are never many.
    Duration key_request(TimePoint now, const std::string& key, bool loopback);
    void hello_failed(TimePoint now, const std::string& address, bool loopback);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex::net
