// How many tokens a key may use in a minute, prompts and answers together. A request reserves
// the most that it may take and gives back what it did not. Thread-safe; `now` is given.
//
// A bucket that refills evenly and holds a minute's worth. A request that may take more than that
// waits for a full bucket, and what it takes beyond is owed: the next one waits for it.
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
        Duration wait{};           // zero: reserved
        std::uint64_t tokens = 0;  // that were taken
    };
    // `per_minute` above zero: it may differ from the last time.
    Reservation reserve(TimePoint now, const std::string& key_id, std::uint64_t per_minute,
                        std::uint64_t tokens_max);
    // The request that had `reserved` took `used`.
    void settle(TimePoint now, const std::string& key_id, std::uint64_t reserved,
                std::uint64_t used);

  private:
    struct Bucket {
        double level = 0, per_minute = 0;
        TimePoint at{};
        void refill(TimePoint now);
    };
    std::mutex mutex_;
    std::unordered_map<std::string, Bucket> buckets_;  // of keys that the registry knows
};

}  // namespace moex::net
