#include "hub/registry/registry.h"

#include <ctime>

#include "hub/base/log.h"
#include "hub/registry/postgres_store.h"
#include "hub/registry/registry_state.h"
#include "hub/registry/sqlite_store.h"
#include "hub/registry/state_files.h"
#include "protocol/thread_name.h"

namespace moex {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::int64_t workers_stored_max = 10'000;
// The most new workers that are recorded between two commits; a further new worker is recorded when
// it connects the next time.
constexpr std::size_t pending_workers_max = 4'096;

constexpr Duration pause_between_looks = 100ms, pause_between_commits = 400ms;

std::int64_t day_of(std::int64_t time_s) { return time_s - time_s % 86'400; }

}  // namespace

std::int64_t unix_now_s() { return std::time(nullptr); }

namespace {

Status write_worker(Database& database, const std::string& key, const WorkerRecord& delta) {
    Statement add(
        database,
        text("INSERT INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (worker_key) DO "
             "UPDATE SET nickname = excluded.nickname, description = excluded.description, "
             "pairs_answered = workers.pairs_answered + excluded.pairs_answered, bytes_sent = "
             "workers.bytes_sent + excluded.bytes_sent, bad_answers = workers.bad_answers + "
             "excluded.bad_answers, last_seen_s = ",
             database.larger(), "(workers.last_seen_s, excluded.last_seen_s)"));
    add.bind(std::string_view(key))
        .bind(std::string_view(delta.nickname))
        .bind(std::string_view(delta.description));
    add.bind(static_cast<std::int64_t>(delta.pairs_answered))
        .bind(static_cast<std::int64_t>(delta.bytes_sent));
    return add.bind(static_cast<std::int64_t>(delta.bad_answers))
        .bind(delta.first_seen_s)
        .bind(delta.last_seen_s)
        .run();
}

Status write_use(Database& database, const std::string& key_id, std::int64_t day_s,
                 const TokenUse& use) {
    Statement add(database,
                  "INSERT INTO token_use VALUES (?, ?, ?, ?, ?) ON CONFLICT (key_id, day_s) DO "
                  "UPDATE SET requests = token_use.requests + excluded.requests, prompt_tokens = "
                  "token_use.prompt_tokens + excluded.prompt_tokens, answer_tokens = "
                  "token_use.answer_tokens + excluded.answer_tokens");
    add.bind(std::string_view(key_id)).bind(day_s);
    return add.bind(static_cast<std::int64_t>(use.requests))
        .bind(static_cast<std::int64_t>(use.prompt_tokens))
        .bind(static_cast<std::int64_t>(use.answer_tokens))
        .run();
}

Status write_counts(Database& database, const Pending& counts) {
    for (const auto& [name, delta] : counts.counters) {
        Statement add(database,
                      "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = "
                      "counters.value + excluded.value");
        MOEX_TRY(add.bind(std::string_view(name)).bind(static_cast<std::int64_t>(delta)).run());
    }

    for (const auto& [key, delta] : counts.workers) MOEX_TRY(write_worker(database, key, delta));
    if (!counts.workers.empty()) {
        Statement forget(database,
                         "DELETE FROM workers WHERE worker_key IN (SELECT worker_key FROM "
                         "workers ORDER BY last_seen_s DESC LIMIT 1000000 OFFSET ?)");
        MOEX_TRY(forget.bind(workers_stored_max).run());
    }

    MOEX_TRY(write_trust(database, counts.trust));
    for (const HistoryMinute& minute : counts.minutes) MOEX_TRY(write_minute(database, minute));
    MOEX_TRY(write_contributions(database, counts));
    MOEX_TRY(return_tokens(database, counts.tokens_back));
    for (const auto& [key_and_day, use] : counts.token_use)
        MOEX_TRY(write_use(database, key_and_day.first, key_and_day.second, use));
    return {};
}

}  // namespace

Status RegistryState::write_batch() {
    MOEX_ASSIGN(session, store->session());
    Transaction transaction(*session);
    MOEX_TRY(transaction.begun());
    MOEX_ASSIGN(is_new, store->begin_batch(*session, batch_number));
    if (is_new) MOEX_TRY(write_counts(*session, batch));
    return transaction.commit();
}

// Writes all pending counts. A batch whose commit was not answered is written first.
void RegistryState::commit_pending() {
    const std::lock_guard committing(commit_mutex);
    for (;;) {
        if (batch.empty()) {
            const std::lock_guard lock(pending_mutex);
            if (pending.empty()) return;
            std::swap(batch, pending);
            ++batch_number;
        }

        const Status written = write_batch();
        if (!written.ok() && written.error().code == ErrorCode::unavailable) {
            log_rarely(LogLevel::warn, "registry: counts wait for the store",
                       kv("error", written.error().message));
            return;
        }
        writes_fail = !written.ok();
        if (!written.ok()) {
            log_rarely(LogLevel::error,
                       "registry: the state cannot be written; token use of keys is written later, "
                       "other counts of this moment are lost",
                       kv("error", written.error().message));
            return keep_token_use();
        }
        batch = {};
    }
}

// A full disk must not stop the hub. The token use of keys is kept for the next attempt. All other
// counts of the batch are lost.
void RegistryState::keep_token_use() {
    const std::lock_guard lock(pending_mutex);
    for (const auto& [key_and_day, use] : batch.token_use) add_use(key_and_day, use);
    batch = {};
}

// The caller must hold pending_mutex.
void RegistryState::add_use(const std::pair<std::string, std::int64_t>& key_and_day,
                            const TokenUse& use) {
    TokenUse& sum = pending.token_use[key_and_day];
    sum.requests += use.requests;
    sum.prompt_tokens += use.prompt_tokens;
    sum.answer_tokens += use.answer_tokens;
}

void RegistryState::serve() {
    name_thread("registry");
    for (TimePoint commit_at = now_steady() + pause_between_commits;;) {
        wake.wait(store->event_descriptor(), pause_between_looks);
        {
            const std::lock_guard lock(pending_mutex);
            if (stopping) return;
        }
        look_at_store();
        renew_membership(false);
        if (now_steady() >= commit_at) {
            commit_pending();
            commit_at = now_steady() + pause_between_commits;
        }
    }
}

Registry::Registry() : state_(std::make_unique<RegistryState>()) {}

Registry::~Registry() {
    if (state_->thread.joinable()) {
        {
            const std::lock_guard lock(state_->pending_mutex);
            state_->stopping = true;
        }
        state_->wake.set();
        state_->thread.join();
        state_->commit_pending();
        state_->leave_fleet();
    }
}

Result<std::unique_ptr<Registry>> Registry::open(const fs::path& directory) {
    return open({.directory = directory});
}

Result<std::unique_ptr<Registry>> Registry::open(const StorePlace& place) {
    if (place.url.empty() || !place.directory.empty()) MOEX_TRY(secure_directory(place.directory));
    std::unique_ptr<Registry> registry(new Registry());
    RegistryState& state = *registry->state_;
    state.directory = place.directory;
    state.expiries_seen_s = unix_now_s();

    if (place.url.empty()) {
        MOEX_TRY(secure_file(place.directory / "moex.sqlite"));
        MOEX_ASSIGN(store, SqliteStore::open(place.directory));
        state.store = std::move(store);
        MOEX_ASSIGN(bans, BanBook::open(place.directory));
        state.bans = std::move(bans);
    } else {
        MOEX_ASSIGN(address, PostgresAddress::parse(place.url));
        MOEX_ASSIGN(store, PostgresStore::open(address));
        state.store = std::move(store);
        auto bans = std::make_unique<SharedBans>(*state.store, [&state] { state.wake.set(); });
        state.shared_bans = bans.get();
        state.bans = std::move(bans);
        state.membership = make_membership(*state.store);
        state.keys_good_for = place.keys_good_for;
        state.keys_good_until = now_steady() + place.keys_good_for;
    }
    MOEX_TRY(state.read_again());
    state.thread = std::thread([&state] { state.serve(); });
    return registry;
}

BanBook& Registry::bans() { return *state_->bans; }
Membership* Registry::membership() { return state_->membership.get(); }
Store& Registry::store() { return *state_->store; }
bool Registry::is_shared() const { return state_->store->is_shared(); }
bool Registry::store_is_away() const { return state_->is_away; }
bool Registry::store_is_wiped() const { return state_->is_wiped; }

void Registry::add_to_counter(std::string_view name, std::uint64_t delta) {
    if (delta == 0) return;
    const std::lock_guard lock(state_->pending_mutex);
    const auto found = state_->pending.counters.find(name);
    if (found != state_->pending.counters.end())
        found->second += delta;
    else
        state_->pending.counters.emplace(std::string(name), delta);
}

std::vector<std::pair<std::string, std::uint64_t>> Registry::counters() const {
    state_->commit_pending();
    std::vector<std::pair<std::string, std::uint64_t>> counters;
    const auto session = state_->store->session();
    if (!session.ok()) return counters;
    Statement select(**session, "SELECT name, value FROM counters ORDER BY name");
    while (select.step())
        counters.emplace_back(select.text_column(0), static_cast<std::uint64_t>(select.integer(1)));
    return counters;
}

void Registry::record_worker(const WorkerRecord& delta) {
    if (delta.worker_key.empty()) return;
    const std::lock_guard lock(state_->pending_mutex);
    const auto found = state_->pending.workers.find(delta.worker_key);
    if (found == state_->pending.workers.end()) {
        if (state_->pending.workers.size() < pending_workers_max)
            state_->pending.workers.emplace(delta.worker_key, delta);
        return;
    }

    WorkerRecord& record = found->second;
    record.nickname = delta.nickname;
    record.description = delta.description;
    record.pairs_answered += delta.pairs_answered;
    record.bytes_sent += delta.bytes_sent;
    record.bad_answers += delta.bad_answers;
    record.first_seen_s = std::min(record.first_seen_s, delta.first_seen_s);

    record.last_seen_s = std::max(record.last_seen_s, delta.last_seen_s);
}

std::vector<WorkerRecord> Registry::workers() const {
    state_->commit_pending();
    std::vector<WorkerRecord> workers;
    const auto session = state_->store->session();
    if (!session.ok()) return workers;
    Statement select(**session,
                     "SELECT worker_key, nickname, description, pairs_answered, bytes_sent, "
                     "bad_answers, first_seen_s, last_seen_s FROM workers ORDER BY worker_key");

    while (select.step())
        workers.push_back({select.text_column(0), select.text_column(1), select.text_column(2),
                           static_cast<std::uint64_t>(select.integer(3)),
                           static_cast<std::uint64_t>(select.integer(4)),
                           static_cast<std::uint64_t>(select.integer(5)), select.integer(6),
                           select.integer(7)});

    return workers;
}

void Registry::add_token_use(std::string_view key_id, const TokenUse& use) {
    const std::lock_guard lock(state_->pending_mutex);
    state_->add_use({std::string(key_id), day_of(unix_now_s())}, use);
}

std::vector<TokenUseOfDay> Registry::token_use() const {
    state_->commit_pending();
    std::vector<TokenUseOfDay> days;
    const auto session = state_->store->session();
    if (!session.ok()) return days;
    Statement select(**session,
                     "SELECT key_id, day_s, requests, prompt_tokens, answer_tokens FROM token_use "
                     "ORDER BY day_s, key_id");
    while (select.step()) {
        TokenUseOfDay& day = days.emplace_back();
        day.key_id = select.text_column(0);
        day.day_s = select.integer(1);
        day.requests = static_cast<std::uint64_t>(select.integer(2));
        day.prompt_tokens = static_cast<std::uint64_t>(select.integer(3));
        day.answer_tokens = static_cast<std::uint64_t>(select.integer(4));
    }
    return days;
}

Result<TokenReservation> Registry::reserve_tokens(std::string_view key_id, std::uint64_t per_minute,
                                                  std::uint64_t tokens_max) {
    MOEX_ASSIGN(session, state_->store->session());
    return moex::reserve_tokens(*session, key_id, per_minute, tokens_max);
}

void Registry::settle_tokens(std::string_view key_id, std::uint64_t reserved, std::uint64_t used) {
    const std::lock_guard lock(state_->pending_mutex);
    state_->pending.tokens_back[std::string(key_id)] += static_cast<std::int64_t>(reserved) -
                                                        static_cast<std::int64_t>(used);
}

void Registry::flush() { state_->commit_pending(); }
const fs::path& Registry::directory() const { return state_->directory; }
bool Registry::writes_fail() const { return state_->writes_fail; }

}  // namespace moex
