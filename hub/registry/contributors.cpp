// Counts the work of contributors, and answers queries about it.
#include <algorithm>

#include "hub/registry/registry.h"
#include "hub/registry/registry_state.h"

namespace moex {
namespace {

constexpr std::int64_t day_length_s = 86'400, days_kept = 400, days_shown = 30;
constexpr std::int64_t contributors_stored_max = 10'000;
constexpr std::int64_t board_rows = 20;
constexpr std::size_t pending_max = 4'096;

std::int64_t lent_day_of(std::int64_t time_s) { return time_s - time_s % day_length_s; }
std::int64_t stored(std::uint64_t count) { return static_cast<std::int64_t>(count); }
std::uint64_t count_at(const Statement& row, int column) {
    return static_cast<std::uint64_t>(row.integer(column));
}

Status add_day(Database& database, const PublicKey& key, std::int64_t day_s, const LentWork& work) {
    Statement add(
        database,
        "INSERT INTO contributor_days VALUES (?, ?, ?, ?) ON CONFLICT (public_key, "
        "day_s) DO UPDATE SET pairs = contributor_days.pairs + excluded.pairs, verified = "
        "contributor_days.verified + excluded.verified");
    return add.bind(ByteView(key))
        .bind(day_s)
        .bind(stored(work.pairs))
        .bind(stored(work.verified))
        .run();
}

Status add_to_all(Database& database, std::int64_t day_s, const LentWork& work) {
    Statement add(database,
                  "INSERT INTO work_days VALUES (?, ?, ?) ON CONFLICT (day_s) DO UPDATE SET pairs "
                  "= work_days.pairs + excluded.pairs, verified = work_days.verified + "
                  "excluded.verified");
    return add.bind(day_s).bind(stored(work.pairs)).bind(stored(work.verified)).run();
}

std::uint64_t rank_of(Database& database, std::uint64_t pairs) {
    Statement select(database, "SELECT count(*) FROM contributors WHERE pairs > ?");
    return select.bind(stored(pairs)).step() ? count_at(select, 0) + 1 : 0;
}

// Counts the consecutive days with work up to today or yesterday. `days` are the days with work,
// the newest first.
std::uint32_t streak_of(const std::vector<WorkOfDay>& days, std::int64_t today_s) {
    std::uint32_t streak = 0;
    std::int64_t wanted_s = today_s;
    for (const WorkOfDay& day : days) {
        if (streak == 0 && day.day_s == today_s - day_length_s) wanted_s = day.day_s;
        if (day.day_s != wanted_s) break;
        ++streak;
        wanted_s -= day_length_s;
    }
    return streak;
}

std::optional<ContributorTotals> totals_of(Database& database, const PublicKey& key,
                                           std::int64_t now_s) {
    ContributorTotals totals;
    {
        Statement select(database,
                         "SELECT nickname, pairs, verified, first_seen_s FROM contributors WHERE "
                         "public_key = ?");
        if (!select.bind(ByteView(key)).step()) return std::nullopt;
        totals.nickname = select.text_column(0);
        totals.pairs = count_at(select, 1);
        totals.verified = count_at(select, 2);
        totals.first_seen_s = select.integer(3);
    }
    totals.rank = rank_of(database, totals.pairs);

    Statement select(database,
                     "SELECT day_s, pairs, verified FROM contributor_days WHERE public_key = ? AND "
                     "pairs > 0 ORDER BY day_s DESC");
    select.bind(ByteView(key));
    while (select.step())
        totals.days.push_back({{count_at(select, 1), count_at(select, 2)}, select.integer(0)});

    const std::int64_t today_s = lent_day_of(now_s);
    totals.streak_days = streak_of(totals.days, today_s);
    if (!totals.days.empty() && totals.days.front().day_s == today_s)
        totals.today = totals.days.front();
    std::erase_if(totals.days, [&](const WorkOfDay& day) {
        return day.day_s <= today_s - days_shown * day_length_s;
    });
    std::reverse(totals.days.begin(), totals.days.end());
    return totals;
}

}  // namespace

// ---- counting

namespace {

Status write_contributor(Database& database, const PublicKey& key,
                         const PendingContributor& delta) {
    {
        Statement add(
            database,
            text("INSERT INTO contributors VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (public_key) DO "
                 "UPDATE SET nickname = excluded.nickname, pairs = contributors.pairs + "
                 "excluded.pairs, verified = contributors.verified + excluded.verified, "
                 "last_seen_s = ",
                 database.larger(), "(contributors.last_seen_s, excluded.last_seen_s)"));
        LentWork all;
        for (const auto& [day_s, work] : delta.days) all += work;
        add.bind(ByteView(key)).bind(std::string_view(delta.nickname));
        add.bind(stored(all.pairs)).bind(stored(all.verified));
        MOEX_TRY(add.bind(delta.seen_s).bind(delta.seen_s).run());
    }
    for (const auto& [day_s, work] : delta.days) MOEX_TRY(add_day(database, key, day_s, work));
    return {};
}

}  // namespace

Status write_contributions(Database& database, const Pending& pending) {
    for (const auto& [day_s, work] : pending.work) MOEX_TRY(add_to_all(database, day_s, work));
    for (const auto& [key, delta] : pending.contributors)
        MOEX_TRY(write_contributor(database, key, delta));
    if (pending.contributors.empty()) return {};

    Statement forget(database,
                     "DELETE FROM contributors WHERE public_key IN (SELECT public_key FROM "
                     "contributors ORDER BY last_seen_s DESC LIMIT 1000000 OFFSET ?)");
    MOEX_TRY(forget.bind(contributors_stored_max).run());
    Statement forget_days(database, "DELETE FROM contributor_days WHERE day_s < ?");
    return forget_days.bind(lent_day_of(unix_now_s()) - days_kept * day_length_s).run();
}

void Registry::add_work(const LentWork& work) {
    const std::lock_guard lock(state_->pending_mutex);
    state_->pending.work[lent_day_of(unix_now_s())] += work;
}

void Registry::add_contribution(const PublicKey& key, std::string_view nickname,
                                const LentWork& work) {
    const std::lock_guard lock(state_->pending_mutex);
    auto& contributors = state_->pending.contributors;
    if (contributors.size() >= pending_max && !contributors.contains(key)) return;
    PendingContributor& delta = contributors[key];
    delta.nickname = nickname;
    delta.seen_s = unix_now_s();
    if (work != LentWork{}) delta.days[lent_day_of(delta.seen_s)] += work;
}

// ---- answering

Contributions Registry::contributions(const std::optional<PublicKey>& mine,
                                      std::int64_t now_s) const {
    Contributions found;
    const auto session = state_->store->session();
    if (!session.ok()) return found;
    Database& database = **session;
    {
        Statement select(database, "SELECT count(*) FROM contributors");
        if (select.step()) found.contributors = count_at(select, 0);
    }
    {
        Statement select(database, "SELECT pairs, verified FROM work_days WHERE day_s = ?");
        if (select.bind(lent_day_of(now_s)).step())
            found.today = {count_at(select, 0), count_at(select, 1)};
    }
    {
        Statement select(database,
                         "SELECT public_key, nickname, pairs, verified FROM contributors WHERE "
                         "pairs > 0 ORDER BY pairs DESC, public_key DESC LIMIT ?");
        select.bind(board_rows);
        while (select.step()) {
            const Bytes key = select.blob(0);
            BoardRow row{{count_at(select, 2), count_at(select, 3)}, select.text_column(1)};
            row.is_mine = mine && std::equal(key.begin(), key.end(), mine->begin(), mine->end());
            const bool ties = !found.board.empty() && found.board.back().pairs == row.pairs;
            row.rank = ties ? found.board.back().rank : found.board.size() + 1;
            found.board.push_back(std::move(row));
        }
    }
    if (mine) found.mine = totals_of(database, *mine, now_s);
    return found;
}

Status Registry::forget_contributor(const PublicKey& key) {
    state_->commit_pending();
    MOEX_ASSIGN(session, state_->store->session());
    // The schema also deletes the records of the contributor's days.
    Statement remove(*session, "DELETE FROM contributors WHERE public_key = ?");
    return remove.bind(ByteView(key)).run();
}

const Nonces& Registry::nonces() const { return state_->nonces; }

}  // namespace moex
