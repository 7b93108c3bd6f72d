#include "hub/net/access/token_limits.h"

#include <algorithm>

namespace moex::net {

void TokenLimits::Bucket::refill(TimePoint now) {
    const double minutes = std::chrono::duration<double>(now - at).count() / 60.0;
    level = std::min(per_minute, level + per_minute * std::max(0.0, minutes));
    at = std::max(at, now);
}

TokenLimits::Reservation TokenLimits::reserve(TimePoint now, const std::string& key_id,
                                              std::uint64_t per_minute, std::uint64_t tokens_max) {
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = buckets_.try_emplace(key_id);
    Bucket& bucket = found->second;
    if (is_new) bucket = {.level = static_cast<double>(per_minute), .at = now};
    bucket.per_minute = static_cast<double>(per_minute);
    bucket.refill(now);

    const std::uint64_t wanted = std::min(tokens_max, per_minute);
    const double lacking = static_cast<double>(wanted) - bucket.level;
    if (lacking <= 0) {
        bucket.level -= static_cast<double>(wanted);
        return {.tokens = wanted};
    }
    const std::chrono::duration<double> wait(lacking * 60.0 / bucket.per_minute);
    return {.wait = std::chrono::duration_cast<Duration>(wait) + Duration{1}};
}

void TokenLimits::settle(TimePoint now, const std::string& key_id, std::uint64_t reserved,
                         std::uint64_t used) {
    const std::lock_guard lock(mutex_);
    const auto found = buckets_.find(key_id);
    if (found == buckets_.end()) return;

    Bucket& bucket = found->second;
    bucket.refill(now);
    bucket.level = std::min(bucket.per_minute, bucket.level + static_cast<double>(reserved) -
                                                   static_cast<double>(used));
}

}  // namespace moex::net
