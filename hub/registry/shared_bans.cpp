#include "hub/registry/shared_bans.h"

#include <algorithm>

namespace moex {
namespace {

constexpr std::size_t waiting_max = 1'024;

// Returns true if the ban is already written: its commit had arrived, and only the answer was lost.
Result<bool> is_written(Database& database, const BanOrder& order) {
    Statement select(database, "SELECT 1 FROM bans WHERE worker_key = ? AND banned_s >= ?");
    const bool found = select.bind(std::string_view(order.worker_key)).bind(order.now_s).step();
    MOEX_TRY(select.status());
    return found;
}

}  // namespace

Result<Ban> SharedBans::add(std::string_view worker_key, std::string_view nickname,
                            std::string_view reason, std::int64_t now_s, std::int64_t least_s) {
    Ban ban{.worker_key = std::string(worker_key),
            .nickname = std::string(nickname),
            .reason = std::string(reason),
            .times = 1,
            .banned_s = now_s};
    {
        const std::lock_guard lock(mutex_);
        if (const auto before = bans_.find(worker_key); before != bans_.end())
            ban.times = before->second.times + 1;
        ban.until_s = ban_end_s(ban.times, now_s, least_s);
        bans_[ban.worker_key] = ban;
        if (waiting_.size() >= waiting_max)
            return Error{ErrorCode::overloaded,
                         text(waiting_max, " bans wait for the store; this one holds at this hub")};
        waiting_.push_back({ban.worker_key, ban.nickname, ban.reason, now_s, least_s});
    }
    wake_();
    return ban;
}

std::int64_t SharedBans::left_s(std::string_view worker_key, std::int64_t now_s) const {
    const std::lock_guard lock(mutex_);
    const auto found = bans_.find(worker_key);
    return found == bans_.end() ? 0 : std::max<std::int64_t>(0, found->second.until_s - now_s);
}

std::vector<Ban> SharedBans::list() const {
    std::vector<Ban> bans;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [key, ban] : bans_) bans.push_back(ban);
    }
    std::ranges::stable_sort(bans, std::greater{}, &Ban::banned_s);
    return bans;
}

Result<Ban> SharedBans::lift(std::string_view worker_key_begin) {
    MOEX_TRY(write_waiting());
    const std::lock_guard alone(store_mutex_);
    MOEX_ASSIGN(session, store_.session());
    MOEX_ASSIGN(lifted, remove_ban(*session, worker_key_begin));
    const std::lock_guard lock(mutex_);
    bans_.erase(lifted.worker_key);
    return lifted;
}

Status SharedBans::read(Database& database) {
    const std::lock_guard alone(store_mutex_);
    MOEX_ASSIGN(stored, read_bans(database));
    std::map<std::string, Ban, std::less<>> fresh;
    for (Ban& ban : stored) fresh.emplace(ban.worker_key, std::move(ban));
    const std::lock_guard lock(mutex_);
    // Bans that wait for the store are not among the stored ones; this hub applies them already.
    for (const BanOrder& order : waiting_)
        if (const auto known = bans_.find(order.worker_key); known != bans_.end())
            fresh[order.worker_key] = known->second;
    bans_ = std::move(fresh);
    return {};
}

Status SharedBans::write_waiting() {
    for (;;) {
        BanOrder order;
        {
            const std::lock_guard lock(mutex_);
            if (waiting_.empty()) return {};
            order = waiting_.front();
        }
        MOEX_ASSIGN(session, store_.session());
        MOEX_ASSIGN(done, is_written(*session, order));
        if (!done) {
            const auto written = write_ban(*session, order);
            if (!written.ok()) return written.error();
        }
        const std::lock_guard lock(mutex_);
        // Another thread may have written the same order meanwhile.
        if (!waiting_.empty() && waiting_.front().worker_key == order.worker_key &&
            waiting_.front().now_s == order.now_s)
            waiting_.pop_front();
    }
}

}  // namespace moex
