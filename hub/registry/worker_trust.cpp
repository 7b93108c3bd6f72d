// The records of workers' answers, which a shared store has for all of its hubs.
#include <algorithm>

#include "hub/registry/registry.h"
#include "hub/registry/registry_state.h"

namespace moex {
namespace {

constexpr std::int64_t trust_rows_max = 10'000;
// The most workers whose records wait for the store.
constexpr std::size_t pending_trust_max = 4'096;

std::int64_t row_integer(std::uint64_t value) { return static_cast<std::int64_t>(value); }

}  // namespace

WorkerTrust& WorkerTrust::operator+=(const WorkerTrust& later) {
    if (later.times_suspected > 0) rows_answered = rows_verified = answers_verified = 0;
    rows_answered += later.rows_answered;
    rows_verified += later.rows_verified;
    answers_verified += later.answers_verified;
    rows_verified_ever += later.rows_verified_ever;
    // Several hubs may each have forgotten the same lie.
    lies = std::max<std::int64_t>(0, lies + later.lies);
    times_suspected += later.times_suspected;
    suspected = later.suspected;
    lied_s = std::max(lied_s, later.lied_s);
    seen_s = std::max(seen_s, later.seen_s);
    return *this;
}

Status write_trust(Database& database, const std::map<std::string, WorkerTrust>& trust) {
    constexpr std::string_view since = "CASE WHEN excluded.times_suspected > 0 THEN 0 ELSE ";
    const std::string_view larger = database.larger();
    for (const auto& [worker_key, learned] : trust) {
        Statement add(
            database,
            text("INSERT INTO worker_trust AS t VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT "
                 "(worker_key) DO UPDATE SET rows_answered = ",
                 since, "t.rows_answered END + excluded.rows_answered, rows_verified = ", since,
                 "t.rows_verified END + excluded.rows_verified, answers_verified = ", since,
                 "t.answers_verified END + excluded.answers_verified, rows_verified_ever = "
                 "t.rows_verified_ever + excluded.rows_verified_ever, lies = ",
                 larger,
                 "(0, t.lies + ?), times_suspected = t.times_suspected + "
                 "excluded.times_suspected, suspected = excluded.suspected, lied_s = ",
                 larger, "(t.lied_s, excluded.lied_s), seen_s = ", larger,
                 "(t.seen_s, excluded.seen_s)"));
        add.bind(std::string_view(worker_key))
            .bind(row_integer(learned.rows_answered))
            .bind(row_integer(learned.rows_verified))
            .bind(row_integer(learned.answers_verified));
        add.bind(row_integer(learned.rows_verified_ever))
            .bind(std::max<std::int64_t>(0, learned.lies))
            .bind(row_integer(learned.times_suspected));
        MOEX_TRY(add.bind(std::int64_t{learned.suspected})
                     .bind(learned.lied_s)
                     .bind(learned.seen_s)
                     .bind(learned.lies)
                     .run());
    }
    if (trust.empty()) return {};
    Statement forget(database,
                     "DELETE FROM worker_trust WHERE worker_key IN (SELECT worker_key FROM "
                     "worker_trust ORDER BY seen_s DESC OFFSET ?)");
    return forget.bind(trust_rows_max).run();
}

void Registry::add_worker_trust(const std::string& worker_key, const WorkerTrust& learned) {
    if (!is_shared()) return;
    const std::lock_guard lock(state_->pending_mutex);
    auto& trust = state_->pending.trust;
    if (!trust.contains(worker_key) && trust.size() >= pending_trust_max) return;
    // A sum of differences may be negative; the store's count may not.
    WorkerTrust& sum = trust[worker_key];
    const std::int64_t lies = sum.lies + learned.lies;
    sum += learned;
    sum.lies = lies;
}

Result<WorkerTrust> Registry::worker_trust(const std::string& worker_key) {
    if (!is_shared()) return WorkerTrust{};
    state_->commit_pending();
    MOEX_ASSIGN(session, state_->store->session());
    Statement select(*session,
                     "SELECT rows_answered, rows_verified, answers_verified, rows_verified_ever, "
                     "lies, times_suspected, suspected, lied_s, seen_s FROM worker_trust WHERE "
                     "worker_key = ?");
    WorkerTrust trust;
    const auto count = [&](int column) {
        return static_cast<std::uint64_t>(select.integer(column));
    };
    if (select.bind(std::string_view(worker_key)).step())
        trust = {.rows_answered = count(0),
                 .rows_verified = count(1),
                 .answers_verified = count(2),
                 .rows_verified_ever = count(3),
                 .lies = select.integer(4),
                 .times_suspected = count(5),
                 .suspected = select.integer(6) != 0,
                 .lied_s = select.integer(7),
                 .seen_s = select.integer(8)};
    MOEX_TRY(select.status());
    return trust;
}

}  // namespace moex
