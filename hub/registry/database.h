// A connection to a database, its statements and its transactions, for both stores
// (sqlite_database.h and postgres_database.h). Errors are returned as values with the database's
// own message. The SQL of this room is what both understand; the few words that differ are asked of
// the Database. Owner: one thread at a time, which a Session (store.h) lends the connection to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// A statement as one kind of database prepares it. Parameters are '?', bound in order.
class PreparedStatement {
  public:
    virtual ~PreparedStatement() = default;
    virtual void bind(std::int64_t value) = 0;
    virtual void bind(std::string_view value) = 0;
    virtual void bind(ByteView value) = 0;
    virtual bool step() = 0;
    virtual Status status() const = 0;
    virtual std::int64_t integer(int column) const = 0;
    virtual std::string text_column(int column) const = 0;
    virtual Bytes blob(int column) const = 0;
    virtual std::int64_t num_changed() const = 0;
};

class Database {
  public:
    virtual ~Database() = default;
    // Runs any number of SQL statements without parameters.
    virtual Status execute(const std::string& sql) = 0;
    virtual std::unique_ptr<PreparedStatement> prepare(std::string_view sql) = 0;
    // Begins a transaction. One transaction runs at a time, over all connections and processes, so
    // that a transaction may read a row and then write it, and none waits in a circle.
    virtual Status begin() = 0;
    virtual Status commit() = 0;
    // The number of the last migration step that was taken; 0: none.
    virtual Result<std::int64_t> schema_version() = 0;
    virtual Status set_schema_version(std::int64_t number, std::string_view name) = 0;
    // The functions that return the larger and the smaller of two values.
    virtual std::string_view larger() const = 0;
    virtual std::string_view smaller() const = 0;
};

// A prepared statement that is used once: bind the parameters in order, then step or run.
class Statement {
  public:
    Statement(Database& database, std::string_view sql) : prepared_(database.prepare(sql)) {}
    Statement& bind(std::int64_t value);
    Statement& bind(std::string_view value);
    Statement& bind(ByteView value);
    // Advances to the next row; returns false after the last row and after an error (see status()).
    bool step() { return prepared_->step(); }
    Status run();  // executes the statement to its end
    Status status() const { return prepared_->status(); }
    std::int64_t integer(int column) const { return prepared_->integer(column); }
    std::string text_column(int column) const { return prepared_->text_column(column); }
    Bytes blob(int column) const { return prepared_->blob(column); }
    // Number of rows that the statement inserted, updated or deleted, after run().
    std::int64_t num_changed() const { return prepared_->num_changed(); }

  private:
    std::unique_ptr<PreparedStatement> prepared_;
};

// A transaction that is rolled back unless it is committed.
class Transaction {
  public:
    explicit Transaction(Database& database);
    Transaction(const Transaction&) = delete;
    Transaction& operator=(const Transaction&) = delete;
    ~Transaction();
    Status begun() const { return begun_; }
    Status commit();

  private:
    Database& database_;
    Status begun_;
    bool open_ = false;
};

}  // namespace moex
