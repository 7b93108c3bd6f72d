// Bans of workers: a worker's key is banned for a while because its answers were wrong, or because
// the operator ordered it. The bans are stored in the registry's database, over a separate
// connection, so that no other user of the registry waits for these commits. Thread-safe. Another
// process may lift a ban (moex-hub ban lift); the next query sees that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/result.h"

namespace moex {

class Database;

struct Ban {
    std::string worker_key, nickname, reason;
    std::uint32_t times = 0;                 // number of bans of this key, including this one
    std::int64_t banned_s = 0, until_s = 0;  // Unix time
};

// Stores and looks up the bans of workers' keys.
class BanBook {
  public:
    // `directory` is the state folder of a Registry that is open. That Registry has made the table
    // of bans.
    static Result<std::unique_ptr<BanBook>> open(const std::filesystem::path& directory);
    ~BanBook();

    // Bans a worker key for 10 minutes, for twice as long with each further ban, at most for 30
    // days; but at least for `least_s`. Beyond 10,000 keys the oldest bans are deleted.
    Result<Ban> add(std::string_view worker_key, std::string_view nickname, std::string_view reason,
                    std::int64_t now_s, std::int64_t least_s = 0);
    // Returns the number of seconds for which the key stays banned; 0: the key is not banned.
    std::int64_t left_s(std::string_view worker_key, std::int64_t now_s) const;
    // Returns all bans, the latest first. Expired bans are included, since they make the next ban
    // of their key longer.
    std::vector<Ban> list() const;
    // Deletes the bans of a key, named by its first characters. Errors: not_found, or
    // invalid_argument if several keys begin with these characters.
    Result<Ban> lift(std::string_view worker_key_begin);

  private:
    explicit BanBook(std::unique_ptr<Database> database);

    mutable std::mutex mutex_;
    std::unique_ptr<Database> database_;
};

}  // namespace moex
