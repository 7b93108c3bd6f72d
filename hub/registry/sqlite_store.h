// The store of one hub: moex.sqlite and the join token's file in its state folder.
#pragma once

#include <filesystem>
#include <mutex>

#include "hub/registry/sqlite_database.h"
#include "hub/registry/store.h"

namespace moex {

class SqliteStore : public Store {
  public:
    // Opens or makes moex.sqlite in `directory`, migrates an older schema, and takes the join token
    // out of a database that is a backup.
    static Result<std::unique_ptr<SqliteStore>> open(const std::filesystem::path& directory);

    Result<Session> session() override;
    Looked look() override;
    int event_descriptor() const override { return -1; }
    bool is_shared() const override { return false; }
    Result<bool> begin_batch(Database&, std::int64_t) override { return true; }
    Result<std::string> read_join_token() override;
    Result<std::string> first_join_token(const std::string& fresh) override;
    Status write_join_token(const std::string& token) override;

  private:
    SqliteStore(std::filesystem::path directory, std::unique_ptr<SqliteDatabase> database);
    Status prepare();
    Status restore_join_token();
    std::int64_t data_version();

    const std::filesystem::path directory_;
    std::mutex mutex_;  // held while a Session has the connection
    std::unique_ptr<SqliteDatabase> database_;
    std::int64_t data_version_ = 0;  // at the last look; a commit of another process changes it
};

}  // namespace moex
