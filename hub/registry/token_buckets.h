// The token limits of keys over all hubs that share a store: a bucket for each key, as
// hub/net/access/token_limits.h has them for one hub, with the store's clock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "hub/base/clock.h"
#include "hub/registry/database.h"

namespace moex {

struct TokenReservation {
    Duration wait{};           // zero: the tokens are reserved; else the time until a retry
    std::uint64_t tokens = 0;  // number of tokens that were reserved
};

// Takes up to `tokens_max` tokens, at most a full bucket, out of the bucket of a key.
Result<TokenReservation> reserve_tokens(Database& database, std::string_view key_id,
                                        std::uint64_t per_minute, std::uint64_t tokens_max);

// Puts the tokens that requests reserved and did not use back into the buckets, by the ids of keys;
// a negative number takes more out.
Status return_tokens(Database& database,
                     const std::map<std::string, std::int64_t, std::less<>>& tokens);

}  // namespace moex
