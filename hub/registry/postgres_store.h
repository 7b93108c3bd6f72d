// The store that several hubs share: a PostgreSQL database, over a few connections. One connection
// listens for changes by other hubs, and says each second whether the store answers.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "hub/registry/postgres_database.h"
#include "hub/registry/store.h"

namespace moex {

class PostgresStore : public Store {
  public:
    // Connects, and migrates an older schema. Errors: unavailable, or unsupported if the schema is
    // newer.
    static Result<std::unique_ptr<PostgresStore>> open(const PostgresAddress& address);

    Result<Session> session() override;
    Looked look() override;
    int event_descriptor() const override;
    bool is_shared() const override { return true; }
    Result<bool> begin_batch(Database& database, std::int64_t number) override;
    Result<std::string> read_join_token() override;
    Result<std::string> first_join_token(const std::string& fresh) override;
    Status write_join_token(const std::string& token) override;

  private:
    PostgresStore(PostgresAddress address, std::string writer)
        : address_(std::move(address)),
          writer_(std::move(writer)) {}
    Status listen();
    Result<bool> hear();
    Result<std::string> read_identity(Database& database);
    Status check_identity();
    void give_back(Database& database);

    const PostgresAddress address_;
    const std::string writer_;  // names this process in the table `writers`
    std::string identity_;      // of the store that was opened
    // used by the thread that looks
    std::unique_ptr<PostgresDatabase> listener_;
    TimePoint heard_at_{}, try_at_{};
    Duration pause_{};
    // True after a connection broke, until look() has talked to the store again.
    std::atomic<bool> is_away_{false};
    std::atomic<bool> is_wiped_{false};

    std::mutex mutex_;
    std::vector<std::unique_ptr<PostgresDatabase>> idle_;
};

}  // namespace moex
