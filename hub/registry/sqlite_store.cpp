#include "hub/registry/sqlite_store.h"

#include "hub/registry/join_token_file.h"
#include "hub/registry/migrations.h"

namespace moex {

namespace fs = std::filesystem;

SqliteStore::SqliteStore(fs::path directory, std::unique_ptr<SqliteDatabase> database)
    : directory_(std::move(directory)),
      database_(std::move(database)) {}

Result<std::unique_ptr<SqliteStore>> SqliteStore::open(const fs::path& directory) {
    const fs::path file = directory / "moex.sqlite";
    MOEX_ASSIGN(database, SqliteDatabase::open(file));
    std::unique_ptr<SqliteStore> store(new SqliteStore(directory, std::move(database)));
    if (const Status prepared = store->prepare(); !prepared)
        return Error{prepared.error().code, text(file.string(), ": ", prepared.error().message)};
    return store;
}

Status SqliteStore::prepare() {
    MOEX_TRY(
        database_->execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA "
                           "foreign_keys=ON; PRAGMA trusted_schema=OFF;"));
    MOEX_TRY(migrate(*database_, registry_migrations()));
    MOEX_TRY(restore_join_token());
    data_version_ = data_version();
    return {};
}

Status SqliteStore::restore_join_token() {
    std::string token;
    {
        Statement table(*database_,
                        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?");
        if (!table.bind(backup_token_table).step()) return table.status();
    }
    {
        Statement select(*database_, text("SELECT token FROM ", backup_token_table));
        if (select.step()) token = select.text_column(0);
        MOEX_TRY(select.status());
    }
    if (!token.empty()) MOEX_TRY(write_join_token(token));
    return database_->execute(text("DROP TABLE ", backup_token_table));
}

std::int64_t SqliteStore::data_version() {
    Statement select(*database_, "PRAGMA data_version");
    return select.step() ? select.integer(0) : data_version_;
}

Result<Session> SqliteStore::session() {
    mutex_.lock();
    return Session(*database_, [this](Database&) { mutex_.unlock(); });
}

Store::Looked SqliteStore::look() {
    const std::lock_guard lock(mutex_);
    const std::int64_t now = data_version();
    return {.changed = std::exchange(data_version_, now) != now};
}

Result<std::string> SqliteStore::read_join_token() { return moex::read_join_token(directory_); }
Result<std::string> SqliteStore::first_join_token(const std::string& fresh) {
    MOEX_ASSIGN(token, read_join_token());
    if (!token.empty()) return token;
    MOEX_TRY(write_join_token(fresh));
    return fresh;
}
Status SqliteStore::write_join_token(const std::string& token) {
    return moex::write_join_token(directory_, token);
}

}  // namespace moex
