// RAII wrapper of sqlite3: a connection to one file.
#pragma once

#include <filesystem>

#include "hub/registry/database.h"

struct sqlite3;

namespace moex {

class SqliteDatabase : public Database {
  public:
    static Result<std::unique_ptr<SqliteDatabase>> open(const std::filesystem::path& file);
    SqliteDatabase(const SqliteDatabase&) = delete;
    SqliteDatabase& operator=(const SqliteDatabase&) = delete;
    ~SqliteDatabase() override;

    Status execute(const std::string& sql) override;
    std::unique_ptr<PreparedStatement> prepare(std::string_view sql) override;
    Status begin() override { return execute("BEGIN IMMEDIATE"); }
    Status commit() override { return execute("COMMIT"); }
    Result<std::int64_t> schema_version() override;
    Status set_schema_version(std::int64_t number, std::string_view name) override;
    std::string_view larger() const override { return "max"; }
    std::string_view smaller() const override { return "min"; }

    // Replaces the content of `target` by a snapshot of this database. Other connections may write
    // while the copy runs.
    Status copy_to(SqliteDatabase& target);
    std::string message() const;  // sqlite's message of the last error

  private:
    explicit SqliteDatabase(sqlite3* handle) : handle_(handle) {}
    sqlite3* handle_;
};

}  // namespace moex
