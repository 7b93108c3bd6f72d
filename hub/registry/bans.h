// Workers whose key is closed for a while, since their answers were wrong or their host said so: in
// the registry's database, over a connection of its own, so that nobody waits for its commits.
// Thread-safe. Another process may lift a ban (moex-hub ban lift): the next question sees it.
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
    std::uint32_t times = 0;                 // this one included
    std::int64_t banned_s = 0, until_s = 0;  // Unix time
};

class BanBook {
  public:
    // `directory`: that of a Registry that was opened, which made the table.
    static Result<std::unique_ptr<BanBook>> open(const std::filesystem::path& directory);
    ~BanBook();

    // Closes a key: for 10 minutes, for twice as long each further time, at most for 30 days; for
    // `least_s` where that is longer. The one banned longest ago beyond 10,000 is forgotten.
    Result<Ban> add(std::string_view worker_key, std::string_view nickname, std::string_view reason,
                    std::int64_t now_s, std::int64_t least_s = 0);
    // How many seconds the key stays closed; 0 when it is not.
    std::int64_t left_s(std::string_view worker_key, std::int64_t now_s) const;
    // All, the latest first; those that are over too, since the next one is longer for them.
    std::vector<Ban> list() const;
    // Forgets the bans of a key, named by its beginning. not_found; invalid_argument where several
    // begin so.
    Result<Ban> lift(std::string_view worker_key_begin);

  private:
    explicit BanBook(std::unique_ptr<Database> database);

    mutable std::mutex mutex_;
    std::unique_ptr<Database> database_;
};

}  // namespace moex
