// A PostgreSQL server for one test: Debian's programs, without privileges, in a temporary folder,
// on a local socket there. It ends with this object, and with this process.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <thread>

namespace moex::test {

class PostgresServer {
  public:
    // False if PostgreSQL 15 is not installed.
    static bool is_installed();

    PostgresServer();  // makes a database cluster and starts the server; throws if it cannot
    PostgresServer(const PostgresServer&) = delete;
    PostgresServer& operator=(const PostgresServer&) = delete;
    ~PostgresServer();

    void start();  // returns once the server accepts connections
    void stop();   // ends it as a loss of power does
    // Stops or continues all its processes, as a machine that hangs.
    void freeze(bool frozen);
    // The URL of a database that is there already.
    std::string url() const;
    const std::filesystem::path& folder() const { return folder_; }

  private:
    std::filesystem::path folder_;
    pid_t process_ = -1;
    std::thread drain_;  // reads what the server logs
};

}  // namespace moex::test
