#include "hub/registry/database.h"

#include <sqlite3.h>

namespace moex {

Result<std::unique_ptr<Database>> Database::open(const std::filesystem::path& file) {
    sqlite3* handle = nullptr;
    const int result = sqlite3_open_v2(
        file.c_str(), &handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
        nullptr);

    if (result != SQLITE_OK) {
        const std::string message = handle ? sqlite3_errmsg(handle) : sqlite3_errstr(result);
        sqlite3_close(handle);
        return Error{ErrorCode::io_error,
                     text(file.string(), ": cannot open the database: ", message)};
    }

    sqlite3_busy_timeout(handle, 5000);
    return std::unique_ptr<Database>(new Database(handle));
}

Database::~Database() { sqlite3_close_v2(handle_); }

Status Database::execute(const std::string& sql) {
    if (sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK)
        return Error{ErrorCode::io_error, text("database: ", message())};
    return {};
}

Status Database::copy_to(Database& target) {
    sqlite3_backup* const copy = sqlite3_backup_init(target.handle_, "main", handle_, "main");
    if (!copy) return Error{ErrorCode::io_error, text("database: ", target.message())};
    // All pages in one step: a step that is interrupted by a writer begins anew.
    const int result = sqlite3_backup_step(copy, -1);
    sqlite3_backup_finish(copy);
    if (result == SQLITE_DONE) return {};
    return Error{ErrorCode::io_error, text("database: ", sqlite3_errstr(result))};
}

std::string Database::message() const { return sqlite3_errmsg(handle_); }

Statement::Statement(Database& database, std::string_view sql) : database_(database) {
    result_ = sqlite3_prepare_v2(database.handle(), sql.data(), static_cast<int>(sql.size()),
                                 &handle_, nullptr);
}
Statement::~Statement() { sqlite3_finalize(handle_); }

Statement& Statement::bind(std::int64_t value) {
    if (result_ == SQLITE_OK) result_ = sqlite3_bind_int64(handle_, next_parameter_++, value);
    return *this;
}
Statement& Statement::bind(std::string_view value) {
    if (result_ == SQLITE_OK)
        result_ = sqlite3_bind_text(handle_, next_parameter_++, value.data() ? value.data() : "",
                                    static_cast<int>(value.size()), SQLITE_TRANSIENT);
    return *this;
}
Statement& Statement::bind(ByteView value) {
    if (result_ == SQLITE_OK)
        result_ = sqlite3_bind_blob(handle_, next_parameter_++, value.data(),
                                    static_cast<int>(value.size()), SQLITE_TRANSIENT);
    return *this;
}
bool Statement::step() {
    if (result_ != SQLITE_OK && result_ != SQLITE_ROW) return false;
    result_ = sqlite3_step(handle_);
    return result_ == SQLITE_ROW;
}
Status Statement::run() {
    while (step()) {}
    return status();
}
Status Statement::status() const {
    if (result_ == SQLITE_OK || result_ == SQLITE_ROW || result_ == SQLITE_DONE) return {};
    return Error{ErrorCode::io_error, text("database: ", database_.message())};
}
std::int64_t Statement::integer(int column) const { return sqlite3_column_int64(handle_, column); }
std::string Statement::text_column(int column) const {
    const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(handle_, column));
    return data ? std::string(data, static_cast<std::size_t>(sqlite3_column_bytes(handle_, column)))
                : std::string();
}
Bytes Statement::blob(int column) const {
    const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(handle_, column));
    return data ? Bytes(data, data + sqlite3_column_bytes(handle_, column)) : Bytes();
}

Transaction::Transaction(Database& database)
    : database_(database),
      begun_(database.execute("BEGIN IMMEDIATE")),
      open_(begun_.ok()) {}
Transaction::~Transaction() {
    if (open_) (void)database_.execute("ROLLBACK");
}
Status Transaction::commit() {
    MOEX_TRY(begun_);
    MOEX_TRY(database_.execute("COMMIT"));
    open_ = false;
    return {};
}

}  // namespace moex
