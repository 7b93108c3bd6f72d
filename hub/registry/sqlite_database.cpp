#include "hub/registry/sqlite_database.h"

#include <sqlite3.h>

namespace moex {
namespace {

class SqliteStatement : public PreparedStatement {
  public:
    SqliteStatement(const SqliteDatabase& database, sqlite3* connection, std::string_view sql)
        : database_(database),
          connection_(connection) {
        result_ = sqlite3_prepare_v2(connection, sql.data(), static_cast<int>(sql.size()), &handle_,
                                     nullptr);
    }
    SqliteStatement(const SqliteStatement&) = delete;
    SqliteStatement& operator=(const SqliteStatement&) = delete;
    ~SqliteStatement() override { sqlite3_finalize(handle_); }

    void bind(std::int64_t value) override {
        if (result_ == SQLITE_OK) result_ = sqlite3_bind_int64(handle_, next_parameter_++, value);
    }
    void bind(std::string_view value) override {
        if (result_ != SQLITE_OK) return;
        result_ = sqlite3_bind_text(handle_, next_parameter_++, value.data() ? value.data() : "",
                                    static_cast<int>(value.size()), SQLITE_TRANSIENT);
    }
    void bind(ByteView value) override {
        if (result_ != SQLITE_OK) return;
        result_ = sqlite3_bind_blob(handle_, next_parameter_++, value.data(),
                                    static_cast<int>(value.size()), SQLITE_TRANSIENT);
    }
    bool step() override {
        if (result_ != SQLITE_OK && result_ != SQLITE_ROW) return false;
        result_ = sqlite3_step(handle_);
        return result_ == SQLITE_ROW;
    }
    Status status() const override {
        if (result_ == SQLITE_OK || result_ == SQLITE_ROW || result_ == SQLITE_DONE) return {};
        return Error{ErrorCode::io_error, text("database: ", database_.message())};
    }
    std::int64_t integer(int column) const override {
        return sqlite3_column_int64(handle_, column);
    }
    std::string text_column(int column) const override {
        const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(handle_, column));
        return data ? std::string(data,
                                  static_cast<std::size_t>(sqlite3_column_bytes(handle_, column)))
                    : std::string();
    }
    Bytes blob(int column) const override {
        const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(handle_, column));
        return data ? Bytes(data, data + sqlite3_column_bytes(handle_, column)) : Bytes();
    }
    std::int64_t num_changed() const override { return sqlite3_changes64(connection_); }

  private:
    const SqliteDatabase& database_;
    sqlite3* connection_;
    sqlite3_stmt* handle_ = nullptr;
    int next_parameter_ = 1;
    int result_ = 0;
};

}  // namespace

Result<std::unique_ptr<SqliteDatabase>> SqliteDatabase::open(const std::filesystem::path& file) {
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
    return std::unique_ptr<SqliteDatabase>(new SqliteDatabase(handle));
}

SqliteDatabase::~SqliteDatabase() { sqlite3_close_v2(handle_); }

Status SqliteDatabase::execute(const std::string& sql) {
    if (sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK)
        return Error{ErrorCode::io_error, text("database: ", message())};
    return {};
}

std::unique_ptr<PreparedStatement> SqliteDatabase::prepare(std::string_view sql) {
    return std::make_unique<SqliteStatement>(*this, handle_, sql);
}

Result<std::int64_t> SqliteDatabase::schema_version() {
    Statement select(*this, "PRAGMA user_version");
    const std::int64_t version = select.step() ? select.integer(0) : 0;
    MOEX_TRY(select.status());
    return version;
}

Status SqliteDatabase::set_schema_version(std::int64_t number, std::string_view) {
    return execute(text("PRAGMA user_version=", number));
}

Status SqliteDatabase::copy_to(SqliteDatabase& target) {
    sqlite3_backup* const copy = sqlite3_backup_init(target.handle_, "main", handle_, "main");
    if (!copy) return Error{ErrorCode::io_error, text("database: ", target.message())};
    // All pages in one step: a step that is interrupted by a writer begins anew.
    const int result = sqlite3_backup_step(copy, -1);
    sqlite3_backup_finish(copy);
    if (result == SQLITE_DONE) return {};
    return Error{ErrorCode::io_error, text("database: ", sqlite3_errstr(result))};
}

std::string SqliteDatabase::message() const { return sqlite3_errmsg(handle_); }

}  // namespace moex
