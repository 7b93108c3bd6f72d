#include "hub/registry/registry.h"

#include <ctime>

#include "hub/base/log.h"
#include "hub/registry/migrations.h"
#include "hub/registry/registry_state.h"
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

// Keys are polled after each pause, counts are committed after four pauses.
constexpr auto pause_between_looks = 100ms;
constexpr std::uint32_t looks_per_commit = 4;

std::int64_t day_of(std::int64_t time_s) { return time_s - time_s % 86'400; }

}  // namespace

std::int64_t unix_now_s() { return std::time(nullptr); }

Status RegistryState::prepare() {
    MOEX_TRY(
        database->execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA "
                          "foreign_keys=ON; PRAGMA trusted_schema=OFF;"));

    MOEX_TRY(migrate(*database, registry_migrations()));
    const std::lock_guard guard(database_mutex);
    MOEX_TRY(restore_join_token());
    Statement version(*database, "PRAGMA data_version");
    if (version.step()) data_version = version.integer(0);
    expiries_seen_s = unix_now_s();
    return load_keys();
}

Status RegistryState::write_pending(const Pending& pending) {
    Transaction transaction(*database);
    for (const auto& [name, delta] : pending.counters) {
        Statement add(*database,
                      "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET "
                      "value = value + excluded.value");
        MOEX_TRY(add.bind(std::string_view(name)).bind(static_cast<std::int64_t>(delta)).run());
    }

    for (const auto& [key, delta] : pending.workers) MOEX_TRY(write_worker(key, delta));
    if (!pending.workers.empty()) {
        Statement forget(*database,
                         "DELETE FROM workers WHERE worker_key IN (SELECT worker_key FROM "
                         "workers ORDER BY last_seen_s DESC LIMIT -1 OFFSET ?)");
        MOEX_TRY(forget.bind(workers_stored_max).run());
    }

    for (const HistoryMinute& minute : pending.minutes) MOEX_TRY(write_minute(minute));
    MOEX_TRY(write_contributions(pending));
    for (const auto& [key_and_day, use] : pending.token_use) {
        Statement add(*database,
                      "INSERT INTO token_use VALUES (?, ?, ?, ?, ?) ON CONFLICT (key_id, day_s) DO "
                      "UPDATE SET requests = requests + excluded.requests, prompt_tokens = "
                      "prompt_tokens + excluded.prompt_tokens, answer_tokens = answer_tokens + "
                      "excluded.answer_tokens");
        add.bind(std::string_view(key_and_day.first)).bind(key_and_day.second);
        MOEX_TRY(add.bind(static_cast<std::int64_t>(use.requests))
                     .bind(static_cast<std::int64_t>(use.prompt_tokens))
                     .bind(static_cast<std::int64_t>(use.answer_tokens))
                     .run());
    }
    return transaction.commit();
}

Status RegistryState::write_worker(const std::string& key, const WorkerRecord& delta) {
    Statement add(*database,
                  "INSERT INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT "
                  "(worker_key) DO UPDATE SET nickname = excluded.nickname, "
                  "description = excluded.description, pairs_answered = pairs_answered + "
                  "excluded.pairs_answered, "
                  "bytes_sent = bytes_sent + excluded.bytes_sent, bad_answers = "
                  "bad_answers + excluded.bad_answers, "
                  "last_seen_s = max(last_seen_s, excluded.last_seen_s)");

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

void RegistryState::commit_pending() {
    const std::lock_guard database_lock(database_mutex);
    Pending taken;
    {
        const std::lock_guard lock(pending_mutex);
        std::swap(taken, pending);
    }
    if (taken.empty()) return;

    const Status written = write_pending(taken);
    writes_fail = !written.ok();
    if (written.ok()) return;

    // A full disk must not stop the hub. The token use of keys is kept for the next attempt. All
    // other counts are lost, and the log reports it.
    log_rarely(LogLevel::error,
               "registry: the state cannot be written; token use of keys is written later, other "
               "counts of this moment are lost",
               kv("error", written.error().message));
    const std::lock_guard lock(pending_mutex);
    for (const auto& [key_and_day, use] : taken.token_use) add_use(key_and_day, use);
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
    for (std::uint32_t look = 1;; ++look) {
        {
            std::unique_lock lock(pending_mutex);
            wake.wait_for(lock, pause_between_looks, [&] { return stopping || keys_changed; });
            if (stopping) return;
        }
        look_at_keys();
        if (look % looks_per_commit == 0) commit_pending();
    }
}

Registry::Registry() : state_(std::make_unique<RegistryState>()) {}

Registry::~Registry() {
    if (state_->thread.joinable()) {
        {
            const std::lock_guard lock(state_->pending_mutex);
            state_->stopping = true;
        }
        state_->wake.notify_all();
        state_->thread.join();
        state_->commit_pending();
    }
}

Result<std::unique_ptr<Registry>> Registry::open(const fs::path& directory) {
    MOEX_TRY(secure_directory(directory));
    MOEX_TRY(secure_file(directory / "moex.sqlite"));

    MOEX_ASSIGN(database, Database::open(directory / "moex.sqlite"));
    std::unique_ptr<Registry> registry(new Registry());
    RegistryState& state = *registry->state_;
    state.directory = directory;
    state.database = std::move(database);
    if (const Status prepared = state.prepare(); !prepared)
        return Error{prepared.error().code,
                     text((directory / "moex.sqlite").string(), ": ", prepared.error().message)};

    MOEX_ASSIGN(bans, BanBook::open(directory));
    state.bans = std::move(bans);
    state.thread = std::thread([&state] { state.serve(); });
    return registry;
}

BanBook& Registry::bans() { return *state_->bans; }

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
    const std::lock_guard lock(state_->database_mutex);
    std::vector<std::pair<std::string, std::uint64_t>> counters;
    Statement select(*state_->database, "SELECT name, value FROM counters ORDER BY name");
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
    const std::lock_guard lock(state_->database_mutex);
    std::vector<WorkerRecord> workers;
    Statement select(*state_->database,
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
    const std::lock_guard lock(state_->database_mutex);
    std::vector<TokenUseOfDay> days;
    Statement select(*state_->database,
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

void Registry::flush() { state_->commit_pending(); }
const fs::path& Registry::directory() const { return state_->directory; }
bool Registry::writes_fail() const { return state_->writes_fail; }

}  // namespace moex
