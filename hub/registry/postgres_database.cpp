#include "hub/registry/postgres_database.h"

#include <libpq-fe.h>
#include <poll.h>

#include <cerrno>
#include <cstdlib>

#include "protocol/text.h"

namespace moex {
namespace {

// The number of the lock that makes transactions of all hubs run one at a time.
constexpr std::int64_t transaction_lock = 0x6d6f6578;

// The sentence of libpq without its line breaks.
std::string first_line(const char* message) {
    std::string line = message ? message : "";
    for (char& c : line)
        if (c == '\n') c = ' ';
    while (!line.empty() && line.back() == ' ') line.pop_back();
    return line;
}

// Returns `value` without what PostgreSQL refuses in a text: zero bytes and bytes that are no
// UTF-8, which become '?'. A name that a worker chose must not make a whole batch fail.
std::string storable(std::string_view value) {
    std::string out;
    out.reserve(value.size());
    for (std::size_t at = 0; at < value.size();) {
        const auto first = static_cast<unsigned char>(value[at]);
        const std::size_t size = first < 0x80   ? 1
                                 : first < 0xc2 ? 0
                                 : first < 0xe0 ? 2
                                 : first < 0xf0 ? 3
                                 : first < 0xf5 ? 4
                                                : 0;
        bool fits = size > 0 && first != 0 && at + size <= value.size();
        for (std::size_t i = 1; fits && i < size; ++i)
            fits = (static_cast<unsigned char>(value[at + i]) & 0xc0) == 0x80;
        if (fits && size > 2) {
            const auto second = static_cast<unsigned char>(value[at + 1]);
            fits = !(first == 0xe0 && second < 0xa0) && !(first == 0xed && second >= 0xa0) &&
                   !(first == 0xf0 && second < 0x90) && !(first == 0xf4 && second >= 0x90);
        }
        out += fits ? value.substr(at, size) : "?";
        at += fits ? size : 1;
    }
    return out;
}

std::string hex_of(ByteView bytes) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string out = "\\x";
    for (const std::byte byte : bytes) {
        out += digits[std::to_integer<unsigned>(byte) >> 4];
        out += digits[std::to_integer<unsigned>(byte) & 15];
    }
    return out;
}

Bytes bytes_of_hex(std::string_view hex) {
    if (!hex.starts_with("\\x")) return {};
    hex.remove_prefix(2);
    const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    Bytes out(hex.size() / 2);
    for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<std::byte>(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
    return out;
}

// Writes the parameters '?' of the room's SQL as PostgreSQL has them: $1, $2, ...
std::string numbered(std::string_view sql) {
    std::string out;
    int number = 0;
    for (const char c : sql) out += c == '?' ? text('$', ++number) : std::string(1, c);
    return out;
}

class PostgresStatement : public PreparedStatement {
  public:
    PostgresStatement(PostgresDatabase& database, std::string_view sql)
        : database_(database),
          sql_(numbered(sql)) {}

    void bind(std::int64_t value) override { parameters_.push_back(text(value)); }
    void bind(std::string_view value) override { parameters_.push_back(storable(value)); }
    void bind(ByteView value) override { parameters_.push_back(hex_of(value)); }
    bool step() override {
        if (!asked_) {
            asked_ = true;
            auto answer = database_.ask(sql_, parameters_);
            if (answer.ok())
                rows_ = std::move(*answer);
            else
                status_ = answer.error();
        }
        return rows_ && ++row_ < PQntuples(rows_.get());
    }
    Status status() const override { return status_; }
    std::int64_t integer(int column) const override {
        return std::strtoll(PQgetvalue(rows_.get(), row_, column), nullptr, 10);
    }
    std::string text_column(int column) const override {
        return PQgetvalue(rows_.get(), row_, column);
    }
    Bytes blob(int column) const override {
        return bytes_of_hex(PQgetvalue(rows_.get(), row_, column));
    }
    std::int64_t num_changed() const override {
        return rows_ ? std::strtoll(PQcmdTuples(rows_.get()), nullptr, 10) : 0;
    }

  private:
    PostgresDatabase& database_;
    const std::string sql_;
    std::vector<std::string> parameters_;
    bool asked_ = false;
    PostgresDatabase::Answer rows_{nullptr, PQclear};
    int row_ = -1;
    Status status_;
};

}  // namespace

Result<std::unique_ptr<PostgresDatabase>> PostgresDatabase::connect(
    const PostgresAddress& address) {
    auto parameters = address.parameters();
    parameters.insert(
        parameters.end(),
        {{"application_name", "moex-hub"},
         {"client_encoding", "UTF8"},
         {"gssencmode", "disable"},
         {"tcp_user_timeout", "2000"},
         // A hub that stops in the middle of a transaction must not hold the others up.
         {"options", "-c idle_in_transaction_session_timeout=2000 -c statement_timeout=4000"}});
    std::vector<const char*> names, values;
    for (const auto& [name, value] : parameters) {
        names.push_back(name.c_str());
        values.push_back(value.c_str());
    }
    names.push_back(nullptr);
    values.push_back(nullptr);

    std::unique_ptr<PostgresDatabase> database(
        new PostgresDatabase(PQconnectStartParams(names.data(), values.data(), 0)));
    if (const Status open = database->finish_connecting(now_steady() + patience_default);
        !open.ok())
        return Error{ErrorCode::unavailable,
                     text("the store ", address.shown(), ": ", open.error().message)};
    PQsetNoticeProcessor(
        database->connection_, [](void*, const char*) {}, nullptr);
    return database;
}

PostgresDatabase::~PostgresDatabase() { PQfinish(connection_); }

Status PostgresDatabase::finish_connecting(TimePoint deadline) {
    if (!connection_ || PQstatus(connection_) == CONNECTION_BAD) return broken("cannot connect");
    for (auto wanted = PGRES_POLLING_WRITING;;) {
        MOEX_TRY(
            wait_for(wanted == PGRES_POLLING_READING, wanted == PGRES_POLLING_WRITING, deadline));
        wanted = PQconnectPoll(connection_);
        if (wanted == PGRES_POLLING_FAILED) return broken("cannot connect");
        if (wanted == PGRES_POLLING_OK) break;
    }
    if (PQsetnonblocking(connection_, 1) != 0) return broken("cannot connect");
    return {};
}

Error PostgresDatabase::broken(std::string_view what) {
    is_broken_ = true;
    const std::string cause = connection_ ? first_line(PQerrorMessage(connection_)) : std::string();
    return {ErrorCode::unavailable, cause.empty() ? std::string(what) : text(what, ": ", cause)};
}

Status PostgresDatabase::wait_for(bool readable, bool writable, TimePoint deadline) {
    pollfd socket{.fd = PQsocket(connection_),
                  .events = static_cast<short>((readable ? POLLIN : 0) | (writable ? POLLOUT : 0)),
                  .revents = 0};
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now_steady());
        if (left.count() <= 0) {
            is_broken_ = true;
            return Error{ErrorCode::unavailable,
                         text("no answer within ",
                              std::chrono::duration_cast<std::chrono::seconds>(patience_).count(),
                              " seconds")};
        }
        const int found = ::poll(&socket, 1, static_cast<int>(left.count()));
        if (found > 0) return {};
        if (found < 0 && errno != EINTR) return broken("poll failed");
    }
}

Result<PostgresDatabase::Answer> PostgresDatabase::wait_for_answer() {
    lacks_table_ = false;
    const TimePoint deadline = now_steady() + patience_;
    Answer last(nullptr, PQclear);
    for (;;) {
        const int unsent = PQflush(connection_);
        if (unsent < 0) return broken("the connection is lost");
        if (unsent == 0 && !PQisBusy(connection_)) {
            Answer next(PQgetResult(connection_), PQclear);
            if (!next) break;
            // Keep the first error if several statements were sent.
            const bool failed = last && PQresultStatus(last.get()) == PGRES_FATAL_ERROR;
            if (!failed) last = std::move(next);
            continue;
        }
        MOEX_TRY(wait_for(true, unsent > 0, deadline));
        if (PQconsumeInput(connection_) != 1) return broken("the connection is lost");
    }
    if (PQstatus(connection_) == CONNECTION_BAD) return broken("the connection is lost");
    if (!last) return broken("no answer");

    const ExecStatusType status = PQresultStatus(last.get());
    if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK) return last;
    // Classes 08 and 57 (SQLSTATE): the connection is lost, or the server stops. 25P03: a
    // transaction that was idle for too long. 55P03 and 57014: a lock or a statement took too long.
    const char* const code = PQresultErrorField(last.get(), PG_DIAG_SQLSTATE);
    const std::string_view state = code ? code : "";
    const std::string message = text("store: ", first_line(PQresultErrorMessage(last.get())));
    if (state.starts_with("08") || state.starts_with("57") || state == "25P03") {
        is_broken_ = true;
        return Error{ErrorCode::unavailable, message};
    }
    lacks_table_ = state == "42P01" || state == "3F000";  // undefined table, invalid schema name
    return Error{ErrorCode::io_error, message};
}

Result<PostgresDatabase::Answer> PostgresDatabase::ask(const std::string& sql,
                                                       const std::vector<std::string>& parameters) {
    if (is_broken_) return Error{ErrorCode::unavailable, "the connection is lost"};
    std::vector<const char*> values;
    for (const std::string& parameter : parameters) values.push_back(parameter.c_str());
    if (PQsendQueryParams(connection_, sql.c_str(), static_cast<int>(values.size()), nullptr,
                          values.data(), nullptr, nullptr, 0) != 1)
        return broken("the connection is lost");
    return wait_for_answer();
}

Status PostgresDatabase::execute(const std::string& sql) {
    if (is_broken_) return Error{ErrorCode::unavailable, "the connection is lost"};
    if (PQsendQuery(connection_, sql.c_str()) != 1) return broken("the connection is lost");
    const auto answer = wait_for_answer();
    return answer.ok() ? Status() : Status(answer.error());
}

Status PostgresDatabase::set_patience(Duration patience) {
    patience_ = patience;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
    return execute(text("SET idle_in_transaction_session_timeout = ", ms,
                        "; SET statement_timeout = ", 2 * ms));
}

std::unique_ptr<PreparedStatement> PostgresDatabase::prepare(std::string_view sql) {
    return std::make_unique<PostgresStatement>(*this, sql);
}

Status PostgresDatabase::begin() {
    const Status begun = execute(
        text("BEGIN; SELECT pg_advisory_xact_lock(", transaction_lock, ")"));
    if (!begun.ok()) (void)execute("ROLLBACK");
    return begun;
}

Status PostgresDatabase::commit() {
    MOEX_ASSIGN(answer, ask("COMMIT", {}));
    if (std::string_view(PQcmdStatus(answer.get())) == "COMMIT") return {};
    return Error{ErrorCode::io_error, "store: the transaction was rolled back"};
}

Result<std::int64_t> PostgresDatabase::schema_version() {
    {
        // Read the catalog as a table: to_regclass() may answer from a cache of names that does not
        // have yet what another process committed while this one waited for its turn.
        Statement table(*this,
                        "SELECT count(*) FROM pg_catalog.pg_tables WHERE tablename = "
                        "'schema_steps' AND schemaname = current_schema()");
        const bool exists = table.step() && table.integer(0) > 0;
        MOEX_TRY(table.status());
        if (!exists) return std::int64_t{0};
    }
    Statement select(*this, "SELECT coalesce(max(number), 0) FROM schema_steps");
    const std::int64_t version = select.step() ? select.integer(0) : 0;
    MOEX_TRY(select.status());
    return version;
}

Status PostgresDatabase::set_schema_version(std::int64_t number, std::string_view name) {
    MOEX_TRY(
        execute("CREATE TABLE IF NOT EXISTS schema_steps (number BIGINT PRIMARY KEY, name TEXT NOT "
                "NULL)"));
    Statement insert(*this, "INSERT INTO schema_steps VALUES (?, ?)");
    return insert.bind(number).bind(name).run();
}

int PostgresDatabase::descriptor() const { return PQsocket(connection_); }

Result<bool> PostgresDatabase::take_notifications() {
    if (PQconsumeInput(connection_) != 1) return broken("the connection is lost");
    bool found = false;
    while (PGnotify* const notification = PQnotifies(connection_)) {
        found = true;
        PQfreemem(notification);
    }
    return found;
}

}  // namespace moex
