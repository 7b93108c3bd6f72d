#include "hub/registry/ban_table.h"

#include <algorithm>

namespace moex {
namespace {

constexpr std::int64_t first_ban_s = 600, longest_ban_s = 30 * 86'400, bans_stored_max = 10'000;
constexpr std::uint32_t doublings_max = 20;

constexpr std::string_view select_bans =
    "SELECT worker_key, nickname, reason, times, banned_s, until_s FROM bans";

Ban ban_of(const Statement& row) {
    return {.worker_key = row.text_column(0),
            .nickname = row.text_column(1),
            .reason = row.text_column(2),
            .times = static_cast<std::uint32_t>(row.integer(3)),
            .banned_s = row.integer(4),
            .until_s = row.integer(5)};
}

}  // namespace

std::int64_t ban_end_s(std::uint32_t times, std::int64_t now_s, std::int64_t least_s) {
    const std::uint32_t doublings = std::min(times - 1, doublings_max);
    return now_s + std::max(least_s, std::min(longest_ban_s, first_ban_s << doublings));
}

Result<Ban> write_ban(Database& database, const BanOrder& order) {
    Transaction transaction(database);
    MOEX_TRY(transaction.begun());
    Ban ban{.worker_key = order.worker_key,
            .nickname = order.nickname,
            .reason = order.reason,
            .times = 1,
            .banned_s = order.now_s};
    {
        Statement before(database, "SELECT times FROM bans WHERE worker_key = ?");
        if (before.bind(std::string_view(order.worker_key)).step())
            ban.times = static_cast<std::uint32_t>(before.integer(0)) + 1;
        MOEX_TRY(before.status());
    }

    ban.until_s = ban_end_s(ban.times, order.now_s, order.least_s);
    {
        Statement insert(
            database,
            "INSERT INTO bans (worker_key, nickname, reason, times, banned_s, until_s) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (worker_key) DO UPDATE SET nickname "
            "= excluded.nickname, reason = excluded.reason, times = excluded.times, "
            "banned_s = excluded.banned_s, until_s = excluded.until_s");
        insert.bind(std::string_view(ban.worker_key))
            .bind(std::string_view(ban.nickname))
            .bind(std::string_view(ban.reason));
        MOEX_TRY(insert.bind(std::int64_t{ban.times}).bind(ban.banned_s).bind(ban.until_s).run());
    }
    {
        Statement forget(database,
                         "DELETE FROM bans WHERE worker_key IN (SELECT worker_key FROM bans ORDER "
                         "BY banned_s DESC LIMIT 1000000 OFFSET ?)");
        MOEX_TRY(forget.bind(bans_stored_max).run());
    }
    MOEX_TRY(transaction.commit());
    return ban;
}

Result<std::vector<Ban>> read_bans(Database& database) {
    std::vector<Ban> bans;
    Statement select(database, text(select_bans, " ORDER BY banned_s DESC, worker_key"));
    while (select.step()) bans.push_back(ban_of(select));
    MOEX_TRY(select.status());
    return bans;
}

Result<Ban> remove_ban(Database& database, std::string_view worker_key_begin) {
    std::vector<Ban> found;
    {
        Statement select(database, text(select_bans,
                                        " WHERE substr(worker_key, 1, length(CAST(? AS TEXT))) = "
                                        "CAST(? AS TEXT)"));
        select.bind(worker_key_begin).bind(worker_key_begin);
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

    Statement remove(database, "DELETE FROM bans WHERE worker_key = ?");
    MOEX_TRY(remove.bind(std::string_view(found.front().worker_key)).run());
    return found.front();
}

}  // namespace moex
