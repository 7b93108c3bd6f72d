// Bans of workers: a worker's key is banned for a while because its answers were wrong, or because
// the operator ordered it. Thread-safe. Another process may add or lift a ban.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/result.h"

namespace moex {

struct Ban {
    std::string worker_key, nickname, reason;
    std::uint32_t times = 0;                 // number of bans of this key, including this one
    std::int64_t banned_s = 0, until_s = 0;  // Unix time
};

// Stores and looks up the bans of workers' keys.
class BanBook {
  public:
    // The bans in the sqlite database of a state folder, over a connection of their own, so that no
    // other user of the registry waits for these commits. A Registry of `directory` is open, and
    // has made the table of bans. The bans of a shared store are in shared_bans.h.
    static Result<std::unique_ptr<BanBook>> open(const std::filesystem::path& directory);
    virtual ~BanBook() = default;

    // Bans a worker key for 10 minutes, for twice as long with each further ban, at most for 30
    // days; but at least for `least_s`. Beyond 10,000 keys the oldest bans are deleted.
    virtual Result<Ban> add(std::string_view worker_key, std::string_view nickname,
                            std::string_view reason, std::int64_t now_s,
                            std::int64_t least_s = 0) = 0;
    // Returns the number of seconds for which the key stays banned; 0: the key is not banned.
    virtual std::int64_t left_s(std::string_view worker_key, std::int64_t now_s) const = 0;
    // Returns all bans, the latest first. Expired bans are included, since they make the next ban
    // of their key longer.
    virtual std::vector<Ban> list() const = 0;
    // Deletes the bans of a key, named by its first characters. Errors: not_found, invalid_argument
    // if several keys begin with these characters, or unavailable if the store is away.
    virtual Result<Ban> lift(std::string_view worker_key_begin) = 0;
};

}  // namespace moex
