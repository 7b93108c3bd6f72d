#include "hub/registry/bans.h"

#include <algorithm>
#include <mutex>

#include "hub/registry/ban_table.h"
#include "hub/registry/sqlite_database.h"

namespace moex {
namespace {

class LocalBans : public BanBook {
  public:
    explicit LocalBans(std::unique_ptr<Database> database) : database_(std::move(database)) {}

    Result<Ban> add(std::string_view worker_key, std::string_view nickname, std::string_view reason,
                    std::int64_t now_s, std::int64_t least_s) override {
        const std::lock_guard lock(mutex_);
        return write_ban(*database_, {std::string(worker_key), std::string(nickname),
                                      std::string(reason), now_s, least_s});
    }
    std::int64_t left_s(std::string_view worker_key, std::int64_t now_s) const override {
        const std::lock_guard lock(mutex_);
        Statement select(*database_, "SELECT until_s FROM bans WHERE worker_key = ?");
        return select.bind(worker_key).step() ? std::max<std::int64_t>(0, select.integer(0) - now_s)
                                              : 0;
    }
    std::vector<Ban> list() const override {
        const std::lock_guard lock(mutex_);
        auto bans = read_bans(*database_);
        return bans.ok() ? *std::move(bans) : std::vector<Ban>();
    }
    Result<Ban> lift(std::string_view worker_key_begin) override {
        const std::lock_guard lock(mutex_);
        return remove_ban(*database_, worker_key_begin);
    }

  private:
    mutable std::mutex mutex_;
    std::unique_ptr<Database> database_;
};

}  // namespace

Result<std::unique_ptr<BanBook>> BanBook::open(const std::filesystem::path& directory) {
    MOEX_ASSIGN(database, SqliteDatabase::open(directory / "moex.sqlite"));
    // A ban outlives the process that wrote it. A power failure may lose the most recent ban.
    MOEX_TRY(database->execute("PRAGMA synchronous=NORMAL; PRAGMA trusted_schema=OFF;"));
    return std::unique_ptr<BanBook>(new LocalBans(std::move(database)));
}

}  // namespace moex
