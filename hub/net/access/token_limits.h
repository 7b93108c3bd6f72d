// Limits the tokens that a key may use in a minute, prompts and answers together. A request
// reserves the most tokens that it may use, and returns the unused ones. Thread-safe; the caller
// passes `now`.
//
// Each key has a bucket that refills evenly and holds the tokens of one minute. A request that may
// use more tokens waits for a full bucket. Its further tokens are a debt, and the next request
// waits until the debt is refilled.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "hub/base/clock.h"

namespace moex::net {

class TokenLimits {
  public:
    struct Reservation {
        Duration wait{};           // zero: the tokens are reserved; else the time until a retry
        std::uint64_t tokens = 0;  // number of tokens that were reserved
    };
    // Reserves up to `tokens_max` tokens of a key. `per_minute` is above zero, and may differ from
    // the key's previous call.
    Reservation reserve(TimePoint now, const std::string& key_id, std::uint64_t per_minute,
                        std::uint64_t tokens_max);
    // Ends a reservation: the request reserved `reserved` tokens and used `used`.
    void settle(TimePoint now, const std::string& key_id, std::uint64_t reserved,
                std::uint64_t used);

  private:
    struct Bucket {
        double level = 0, per_minute = 0;
        TimePoint at{};
        void refill(TimePoint now);
    };
    std::mutex mutex_;
    std::unordered_map<std::string, Bucket> buckets_;  // buckets by id of a key in the registry
};

}  // namespace moex::net
