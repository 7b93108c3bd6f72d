// Token buckets per address and per key, and bans per address. An address is an IPv4 address or an
// IPv6 /64, the network that one person usually has.
// Thread-safe: one mutex guards a bounded table. The caller passes `now`, so tests need no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "hub/base/clock.h"

namespace moex::net {

struct RateOptions {
    double worker_connects_per_minute = 10, worker_connects_burst = 20;
    double hello_failures_per_minute = 5;  // with more failed HELLOs an address is banned
    Duration ban = std::chrono::minutes(10);
    double api_requests_per_minute = 600, api_requests_burst = 200;
    // limits of one API key, over all addresses
    double key_requests_per_minute = 1200, key_requests_burst = 400;
    // Request bodies that are read as text. Bytes per minute and burst, which bound the cost of
    // JSON, templates and tokenising.
    double text_bytes_per_minute = 64 << 20, text_bytes_burst = 16 << 20;
    // Text bytes allowed to one API key, as a multiple of an address's.
    double key_text_bytes_factor = 2;
    double loopback_factor = 100;  // all limits are multiplied by this for clients on this machine
    std::size_t addresses_max = 16'384;  // most entries in the table; the LRU address is evicted
};

// Returns the table key of an address: "2001:db8:1:2:3:4:5:6" becomes "2001:db8:1:2::/64";
// "::ffff:a.b.c.d" becomes "a.b.c.d". Other addresses do not change.
std::string rate_key(std::string_view address);

class RateLimits {
  public:
    explicit RateLimits(RateOptions options);
    ~RateLimits();
    // Sets new rate limits. The token buckets keep their levels.
    void change(const RateOptions& options);
    // These functions return zero if the request is admitted, and otherwise the time after which
    // the client may retry (Retry-After).
    Duration worker_connect(TimePoint now, const std::string& address, bool loopback);
    Duration api_request(TimePoint now, const std::string& address, bool loopback);
    // Takes `bytes` from the address's bucket for text bytes, and from the key's bucket if the
    // request has a key.
    Duration text_bytes(TimePoint now, const std::string& address, const std::string& key,
                        bool loopback, std::uint64_t bytes);
    // `key` is a key of the registry or its hash, so the number of buckets for keys is bounded.
    Duration key_request(TimePoint now, const std::string& key, bool loopback);
    void hello_failed(TimePoint now, const std::string& address, bool loopback);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex::net
