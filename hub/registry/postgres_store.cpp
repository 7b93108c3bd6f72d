#include "hub/registry/postgres_store.h"

#include <algorithm>
#include <ctime>

#include "hub/base/log.h"
#include "hub/registry/migrations.h"
#include "hub/registry/random_name.h"

namespace moex {
namespace {

constexpr std::size_t idle_max = 4;
// The listening connection asks the store for an answer after this time without any.
constexpr Duration ask_every = 1s;
constexpr Duration first_pause = 100ms, longest_pause = 2s;

}  // namespace

Result<std::unique_ptr<PostgresStore>> PostgresStore::open(const PostgresAddress& address) {
    MOEX_ASSIGN(writer, random_name(16));
    std::unique_ptr<PostgresStore> store(new PostgresStore(address, std::move(writer)));
    MOEX_ASSIGN(database, PostgresDatabase::connect(address));
    // Other hubs may make the tables just now, and a busy server takes its time for that.
    MOEX_TRY(database->set_patience(30s));
    if (const Status migrated = migrate(*database, postgres_migrations()); !migrated.ok())
        return Error{migrated.error().code,
                     text("the store ", address.shown(), ": ", migrated.error().message)};
    MOEX_TRY(database->set_patience(PostgresDatabase::patience_default));
    MOEX_ASSIGN(identity, store->read_identity(*database));
    store->identity_ = std::move(identity);
    store->idle_.push_back(std::move(database));
    MOEX_TRY(store->listen());
    store->pause_ = first_pause;
    return store;
}

Result<Session> PostgresStore::session() {
    if (is_away_)
        return Error{ErrorCode::unavailable,
                     text("the store ", address_.shown(), " does not answer now")};
    if (is_wiped_)
        return Error{ErrorCode::unavailable,
                     text("the store ", address_.shown(),
                          " was wiped, or is another one; restart this process to use it")};
    std::unique_ptr<PostgresDatabase> database;
    {
        const std::lock_guard lock(mutex_);
        if (!idle_.empty()) {
            database = std::move(idle_.back());
            idle_.pop_back();
        }
    }
    if (!database) {
        auto fresh = PostgresDatabase::connect(address_);
        if (!fresh.ok()) {
            is_away_ = true;
            return fresh.error();
        }
        database = *std::move(fresh);
    }
    return Session(*database.release(), [this](Database& used) { give_back(used); });
}

void PostgresStore::give_back(Database& used) {
    std::unique_ptr<PostgresDatabase> database(static_cast<PostgresDatabase*>(&used));
    if (database->is_broken()) {
        is_away_ = true;
        return;
    }
    const std::lock_guard lock(mutex_);
    if (idle_.size() < idle_max) idle_.push_back(std::move(database));
}

int PostgresStore::event_descriptor() const { return listener_ ? listener_->descriptor() : -1; }

Status PostgresStore::listen() {
    MOEX_ASSIGN(database, PostgresDatabase::connect(address_));
    MOEX_TRY(database->execute("LISTEN moex_changed"));
    listener_ = std::move(database);
    heard_at_ = now_steady();
    return {};
}

Result<std::string> PostgresStore::read_identity(Database& database) {
    Statement select(database, "SELECT id FROM store_identity");
    std::string id = select.step() ? select.text_column(0) : std::string();
    MOEX_TRY(select.status());
    return id;
}

// Asks the listening connection whether the store is still the one that was opened. Error
// not_found: it has no tables, or another identity. Error unavailable: no answer, or one that does
// not tell, such as a missing right or a lack of memory.
Status PostgresStore::check_identity() {
    const auto id = read_identity(*listener_);
    if (id.ok() && *id == identity_) return {};
    if (!id.ok() && !listener_->lacks_table())
        return Error{ErrorCode::unavailable, id.error().message};
    const std::string cause = !id.ok() ? id.error().message : "its identity is another one";
    if (!is_wiped_.exchange(true))
        log_error(
            "registry: the store was wiped, or another one is at its address; keys that were read "
            "stay in use for 15 minutes, and nothing is written; restart the hubs to begin anew",
            kv("store", address_.shown()), kv("error", cause));
    return Error{ErrorCode::not_found, cause};
}

// Returns true if a notification has arrived, or if the wiped store is back.
Result<bool> PostgresStore::hear() {
    bool is_back = false;
    if (is_away_ || now_steady() - heard_at_ >= ask_every) {
        heard_at_ = now_steady();
        MOEX_TRY(check_identity());
        is_back = is_wiped_.exchange(false);
    }
    MOEX_ASSIGN(is_notified, listener_->take_notifications());
    return is_notified || is_back;
}

Store::Looked PostgresStore::look() {
    if (listener_) {
        const bool was_away = is_away_;
        const auto found = hear();
        if (found.ok()) {
            // A connection was lost, and the store answers. The idle connections may be lost, too.
            if (was_away) {
                const std::lock_guard lock(mutex_);
                idle_.clear();
            }
            is_away_ = false;
            if (is_wiped_) return {.changed = false, .answers = false, .is_wiped = true};
            return {.changed = *found || was_away, .answers = true};
        }
        if (found.error().code == ErrorCode::not_found)
            return {.changed = false, .answers = false, .is_wiped = true};
        is_away_ = true;
        listener_.reset();
        try_at_ = now_steady();
        log_warn("registry: the store is away; what was read from it stays in use",
                 kv("store", address_.shown()), kv("error", found.error().message));
    }

    if (now_steady() < try_at_) return {.changed = false, .answers = false};
    if (Status heard = listen(); !heard.ok() || !(heard = check_identity()).ok()) {
        if (heard.error().code == ErrorCode::not_found)
            return {.changed = false, .answers = false, .is_wiped = true};
        listener_.reset();
        try_at_ = now_steady() + pause_;
        pause_ = std::min(longest_pause, 2 * pause_);
        return {.changed = false, .answers = false};
    }
    {
        const std::lock_guard lock(mutex_);
        idle_.clear();
    }
    is_away_ = is_wiped_ = false;
    pause_ = first_pause;
    log_info("registry: the store is back", kv("store", address_.shown()));
    return {.changed = true, .answers = true};
}

Result<bool> PostgresStore::begin_batch(Database& database, std::int64_t number) {
    constexpr std::int64_t writers_kept_s = 86'400;
    const auto now_s = static_cast<std::int64_t>(std::time(nullptr));
    {
        Statement forget(database, "DELETE FROM writers WHERE written_s < ? AND writer <> ?");
        MOEX_TRY(forget.bind(now_s - writers_kept_s).bind(std::string_view(writer_)).run());
    }
    Statement mark(
        database,
        "INSERT INTO writers VALUES (?, ?, ?) ON CONFLICT (writer) DO UPDATE SET batch = "
        "excluded.batch, written_s = excluded.written_s WHERE writers.batch < "
        "excluded.batch");
    MOEX_TRY(mark.bind(std::string_view(writer_)).bind(number).bind(now_s).run());
    return mark.num_changed() == 1;
}

Result<std::string> PostgresStore::read_join_token() {
    MOEX_ASSIGN(database, session());
    Statement select(*database, "SELECT token FROM join_token");
    std::string token = select.step() ? select.text_column(0) : std::string();
    MOEX_TRY(select.status());
    return token;
}

Result<std::string> PostgresStore::first_join_token(const std::string& fresh) {
    {
        MOEX_ASSIGN(database, session());
        Statement write(*database,
                        "INSERT INTO join_token (token) VALUES (?) ON CONFLICT DO NOTHING");
        MOEX_TRY(write.bind(std::string_view(fresh)).run());
    }
    return read_join_token();
}

Status PostgresStore::write_join_token(const std::string& token) {
    MOEX_ASSIGN(database, session());
    Statement write(*database,
                    "INSERT INTO join_token (token) VALUES (?) ON CONFLICT (one) DO UPDATE SET "
                    "token = excluded.token");
    return write.bind(std::string_view(token)).run();
}

}  // namespace moex
