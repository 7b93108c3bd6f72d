// A connection to PostgreSQL by libpq. No call waits longer than two seconds, unless
// set_patience() says otherwise: a server that does not answer, and a network that loses packets,
// are an error `unavailable`, and the connection is broken from then on. Whether the server took a
// statement that ended so is not known. Source: the PostgreSQL 15 manual, "libpq: Asynchronous
// Command Processing".
#pragma once

#include <functional>

#include "hub/base/clock.h"
#include "hub/registry/database.h"
#include "hub/registry/postgres_address.h"

struct pg_conn;
struct pg_result;

namespace moex {

class PostgresDatabase : public Database {
  public:
    using Answer = std::unique_ptr<pg_result, void (*)(pg_result*)>;

    static Result<std::unique_ptr<PostgresDatabase>> connect(const PostgresAddress& address);
    PostgresDatabase(const PostgresDatabase&) = delete;
    PostgresDatabase& operator=(const PostgresDatabase&) = delete;
    ~PostgresDatabase() override;

    Status execute(const std::string& sql) override;
    std::unique_ptr<PreparedStatement> prepare(std::string_view sql) override;
    Status begin() override;
    Status commit() override;
    Result<std::int64_t> schema_version() override;
    Status set_schema_version(std::int64_t number, std::string_view name) override;
    std::string_view larger() const override { return "greatest"; }
    std::string_view smaller() const override { return "least"; }

    // Sets how long an answer may take [patience_default]. The server ends a statement after twice
    // this time, and a transaction in which no statement arrives for this time.
    static constexpr Duration patience_default = 2s;
    Status set_patience(Duration patience);

    bool is_broken() const { return is_broken_; }
    // True if the last statement failed since it names a table or a schema that does not exist.
    bool lacks_table() const { return lacks_table_; }
    int descriptor() const;
    // Reads what has arrived, and returns true if it has notifications. Does not wait.
    Result<bool> take_notifications();

    // Sends one statement with parameters in text form, and waits for its answer.
    Result<Answer> ask(const std::string& sql, const std::vector<std::string>& parameters);

  private:
    explicit PostgresDatabase(pg_conn* connection) : connection_(connection) {}
    Status finish_connecting(TimePoint deadline);
    Result<Answer> wait_for_answer();
    Status wait_for(bool readable, bool writable, TimePoint deadline);
    Error broken(std::string_view what);

    pg_conn* connection_;
    bool is_broken_ = false, lacks_table_ = false;
    Duration patience_ = patience_default;
};

}  // namespace moex
