#include "hub/registry/bans.h"

#include <algorithm>

#include "hub/registry/database.h"

namespace moex {
namespace {

constexpr std::int64_t first_ban_s = 600, longest_ban_s = 30 * 86'400, bans_stored_max = 10'000;
constexpr std::uint32_t doublings_max = 20;

Ban ban_of(const Statement& row) {
    return {.worker_key = row.text_column(0),
            .nickname = row.text_column(1),
            .reason = row.text_column(2),
            .times = static_cast<std::uint32_t>(row.integer(3)),
            .banned_s = row.integer(4),
            .until_s = row.integer(5)};
}

}  // namespace

BanBook::BanBook(std::unique_ptr<Database> database) : database_(std::move(database)) {}
BanBook::~BanBook() = default;

Result<std::unique_ptr<BanBook>> BanBook::open(const std::filesystem::path& directory) {
    MOEX_ASSIGN(database, Database::open(directory / "moex.sqlite"));
    // A ban outlives the process that wrote it. A power failure may lose the most recent ban.
    MOEX_TRY(database->execute("PRAGMA synchronous=NORMAL; PRAGMA trusted_schema=OFF;"));
    return std::unique_ptr<BanBook>(new BanBook(std::move(database)));
}

Result<Ban> BanBook::add(std::string_view worker_key, std::string_view nickname,
                         std::string_view reason, std::int64_t now_s, std::int64_t least_s) {
    const std::lock_guard lock(mutex_);
    Transaction transaction(*database_);
    Ban ban{.worker_key = std::string(worker_key),
            .nickname = std::string(nickname),
            .reason = std::string(reason),
            .times = 1,
            .banned_s = now_s};
    {
        Statement before(*database_, "SELECT times FROM bans WHERE worker_key = ?");
        if (before.bind(worker_key).step())
            ban.times = static_cast<std::uint32_t>(before.integer(0)) + 1;
        MOEX_TRY(before.status());
    }

    const std::uint32_t doublings = std::min(ban.times - 1, doublings_max);
    ban.until_s = now_s + std::max(least_s, std::min(longest_ban_s, first_ban_s << doublings));
    {
        Statement insert(*database_, "INSERT OR REPLACE INTO bans VALUES (?, ?, ?, ?, ?, ?)");
        insert.bind(worker_key).bind(nickname).bind(reason);
        MOEX_TRY(insert.bind(std::int64_t{ban.times}).bind(ban.banned_s).bind(ban.until_s).run());
    }
    {
        Statement forget(*database_,
                         "DELETE FROM bans WHERE worker_key IN (SELECT worker_key FROM bans ORDER "
                         "BY banned_s DESC LIMIT -1 OFFSET ?)");
        MOEX_TRY(forget.bind(bans_stored_max).run());
    }
    MOEX_TRY(transaction.commit());
    return ban;
}

std::int64_t BanBook::left_s(std::string_view worker_key, std::int64_t now_s) const {
    const std::lock_guard lock(mutex_);
    Statement select(*database_, "SELECT until_s FROM bans WHERE worker_key = ?");
    return select.bind(worker_key).step() ? std::max<std::int64_t>(0, select.integer(0) - now_s)
                                          : 0;
}

std::vector<Ban> BanBook::list() const {
    const std::lock_guard lock(mutex_);
    std::vector<Ban> bans;
    Statement select(*database_, "SELECT * FROM bans ORDER BY banned_s DESC, worker_key");
    while (select.step()) bans.push_back(ban_of(select));
    return bans;
}

Result<Ban> BanBook::lift(std::string_view worker_key_begin) {
    const std::lock_guard lock(mutex_);
    std::vector<Ban> found;
    {
        Statement select(*database_,
                         "SELECT * FROM bans WHERE substr(worker_key, 1, length(?1)) = ?1");
        select.bind(worker_key_begin);
        while (select.step()) found.push_back(ban_of(select));
        MOEX_TRY(select.status());
    }
    if (found.empty() || worker_key_begin.empty())
        return Error{ErrorCode::not_found,
                     text("no banned worker's key begins with \"", worker_key_begin, '"')};
    if (found.size() > 1)
        return Error{ErrorCode::invalid_argument,
                     text(found.size(), " banned workers' keys begin with \"", worker_key_begin,
                          "\": give more characters")};

    Statement remove(*database_, "DELETE FROM bans WHERE worker_key = ?");
    MOEX_TRY(remove.bind(std::string_view(found.front().worker_key)).run());
    return found.front();
}

}  // namespace moex
