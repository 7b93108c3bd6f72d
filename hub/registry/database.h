// RAII wrappers of sqlite3: a connection, statements, transactions. Errors are returned as values
// with sqlite's own message.
// Owner: the holder of the database's mutex (in the registry or in the bans); these classes are not
// thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/bytes.h"
#include "protocol/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace moex {

class Database;

// A prepared statement that is used once: bind the parameters in order, then step or run.
class Statement {
  public:
    Statement(Database& database, std::string_view sql);
    Statement(const Statement&) = delete;
    Statement& operator=(const Statement&) = delete;
    ~Statement();
    Statement& bind(std::int64_t value);
    Statement& bind(std::string_view value);
    Statement& bind(ByteView value);
    // Advances to the next row; returns false after the last row and after an error (see status()).
    bool step();
    Status run();  // executes the statement to its end
    Status status() const;
    std::int64_t integer(int column) const;
    std::string text_column(int column) const;
    Bytes blob(int column) const;

  private:
    Database& database_;
    sqlite3_stmt* handle_ = nullptr;
    int next_parameter_ = 1;
    int result_ = 0;
};

// A connection to one sqlite file.
class Database {
  public:
    static Result<std::unique_ptr<Database>> open(const std::filesystem::path& file);
    Database(const Database&) = delete;
    Database& operator=(const Database&) = delete;
    ~Database();
    Status execute(const std::string& sql);  // runs any number of SQL statements without parameters
    // Replaces the content of `target` by a snapshot of this database. Other connections may write
    // while the copy runs.
    Status copy_to(Database& target);
    std::string message() const;  // sqlite's message of the last error
    sqlite3* handle() const { return handle_; }

  private:
    explicit Database(sqlite3* handle) : handle_(handle) {}
    sqlite3* handle_;
};

// A transaction (BEGIN IMMEDIATE) that is rolled back unless it is committed.
class Transaction {
  public:
    explicit Transaction(Database& database);
    ~Transaction();
    Status commit();

  private:
    Database& database_;
    Status begun_;
    bool open_ = false;
};

}  // namespace moex
