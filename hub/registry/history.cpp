// Stores the history of the last week: one record for each minute.
#include "hub/registry/registry.h"
#include "hub/registry/registry_state.h"

namespace moex {
namespace {

constexpr std::int64_t kept_s = 7 * 86'400;
constexpr std::size_t minutes_waiting_max = 60;

}  // namespace

// Adds the record of a minute to the stored record, if there is one: a minute in which the hub was
// restarted has two records.
Status write_minute(Database& database, const HistoryMinute& minute) {
    const std::string_view larger = database.larger(), smaller = database.smaller();
    {
        Statement add(
            database,
            text("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (minute_s) "
                 "DO UPDATE SET answer_tokens = history.answer_tokens + excluded.answer_tokens, "
                 "answers = history.answers + excluded.answers, first_token_us = "
                 "history.first_token_us + excluded.first_token_us, call_p50_us = ",
                 larger, "(history.call_p50_us, excluded.call_p50_us), call_p99_us = ", larger,
                 "(history.call_p99_us, excluded.call_p99_us), workers = ", larger,
                 "(history.workers, excluded.workers), covered = ", smaller,
                 "(history.covered, excluded.covered), units = excluded.units, call_p999_us = ",
                 larger, "(history.call_p999_us, excluded.call_p999_us)"));
        add.bind(minute.minute_s);
        for (const std::uint64_t value :
             {minute.answer_tokens, minute.answers, minute.first_token_us, minute.call_p50_us,
              minute.call_p99_us, minute.workers, minute.covered, minute.units,
              minute.call_p999_us})
            add.bind(static_cast<std::int64_t>(value));
        MOEX_TRY(add.run());
    }
    Statement forget(database, "DELETE FROM history WHERE minute_s < ?");
    return forget.bind(minute.minute_s - kept_s).run();
}

void Registry::record_minute(const HistoryMinute& minute) {
    const std::lock_guard lock(state_->pending_mutex);
    if (state_->pending.minutes.size() < minutes_waiting_max)
        state_->pending.minutes.push_back(minute);
}

std::vector<HistoryMinute> Registry::history(std::int64_t from_s) const {
    state_->commit_pending();
    std::vector<HistoryMinute> minutes;
    const auto session = state_->store->session();
    if (!session.ok()) return minutes;
    Statement select(**session,
                     "SELECT minute_s, answer_tokens, answers, first_token_us, call_p50_us, "
                     "call_p99_us, workers, covered, units, call_p999_us FROM history WHERE "
                     "minute_s >= ? ORDER BY minute_s");
    select.bind(from_s);
    while (select.step()) {
        const auto count = [&](int column) {
            return static_cast<std::uint64_t>(select.integer(column));
        };
        minutes.push_back({.minute_s = select.integer(0),
                           .answer_tokens = count(1),
                           .answers = count(2),
                           .first_token_us = count(3),
                           .call_p50_us = count(4),
                           .call_p99_us = count(5),
                           .call_p999_us = count(9),
                           .workers = count(6),
                           .covered = count(7),
                           .units = count(8)});
    }
    return minutes;
}

}  // namespace moex
