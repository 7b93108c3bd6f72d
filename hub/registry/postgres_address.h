// The address of a PostgreSQL database, as --store has it: postgresql://[USER@]HOST[:PORT]/DATABASE
// Source: the PostgreSQL 15 manual, "Connection URIs" and "SSL Support".
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/result.h"

namespace moex {

class PostgresAddress {
  public:
    // Error invalid_argument: `url` is no such address; it has a password, which other users of the
    // machine could read in the list of processes; it has a parameter that is not known here; or it
    // asks for less than TLS with a verified name (sslmode verify-full) beyond this machine.
    static Result<PostgresAddress> parse(std::string_view url);

    // Keywords and values for PQconnectStartParams(). A password comes from PGPASSFILE, PGPASSWORD
    // or the parameter passfile of the URL.
    const std::vector<std::pair<std::string, std::string>>& parameters() const {
        return parameters_;
    }
    const std::string& shown() const { return shown_; }  // host and database, for sentences

  private:
    std::vector<std::pair<std::string, std::string>> parameters_;
    std::string shown_;
};

}  // namespace moex
