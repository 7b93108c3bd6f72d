// sqlite3 behind RAII: a connection, statements, transactions.
// Errors come back as values with sqlite's own sentence.
// Owner: whoever holds the registry's mutex; nothing here is thread-safe by itself.
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

// One prepared statement, used once: bind in order, then step or run.
class Statement {
  public:
    Statement(Database& database, std::string_view sql);
    Statement(const Statement&) = delete;
    Statement& operator=(const Statement&) = delete;
    ~Statement();
    Statement& bind(std::int64_t value);
    Statement& bind(std::string_view value);
    Statement& bind(ByteView value);
    // True while there is a row. An error reads as "no more rows"; see status().
    bool step();
    Status run();  // steps to the end
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

class Database {
  public:
    static Result<std::unique_ptr<Database>> open(const std::filesystem::path& file);
    Database(const Database&) = delete;
    Database& operator=(const Database&) = delete;
    ~Database();
    Status execute(const std::string& sql);  // any number of statements without parameters
    std::string message() const;             // of the last error
    sqlite3* handle() const { return handle_; }

  private:
    explicit Database(sqlite3* handle) : handle_(handle) {}
    sqlite3* handle_;
};

// BEGIN IMMEDIATE; rolls back unless committed.
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
