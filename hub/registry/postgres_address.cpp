#include "hub/registry/postgres_address.h"

#include <libpq-fe.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "protocol/text.h"

namespace moex {
namespace {

Error wrong(std::string_view what) {
    return {ErrorCode::invalid_argument,
            text("--store: ", what, "; wanted postgresql://HOST/DATABASE")};
}

// Returns true if every host of a list such as "a,b" is this machine: a local socket's folder, or a
// loopback address.
bool is_here(std::string_view hosts) {
    while (true) {
        const std::size_t comma = hosts.find(',');
        const std::string_view host = hosts.substr(0, comma);
        if (!host.empty() && host.front() != '/' && host != "localhost" && host != "::1" &&
            !host.starts_with("127."))
            return false;
        if (comma == std::string_view::npos) return true;
        hosts.remove_prefix(comma + 1);
    }
}

constexpr std::array known_parameters{"user",        "host",    "port",   "dbname",  "sslmode",
                                      "sslrootcert", "sslcert", "sslkey", "passfile"};

}  // namespace

Result<PostgresAddress> PostgresAddress::parse(std::string_view url) {
    if (!url.starts_with("postgresql://") && !url.starts_with("postgres://"))
        return wrong("the address of the store is no URL of PostgreSQL");
    char* cause = nullptr;
    const std::unique_ptr<PQconninfoOption, void (*)(PQconninfoOption*)> options(
        PQconninfoParse(std::string(url).c_str(), &cause), PQconninfoFree);
    const std::unique_ptr<char, void (*)(void*)> cause_owner(cause, PQfreemem);
    if (!options) {
        // The sentence of libpq may repeat the whole address, and so a password in it.
        return wrong("libpq cannot read this address");
    }

    PostgresAddress address;
    std::string host, database, mode;
    for (const PQconninfoOption* option = options.get(); option->keyword; ++option) {
        if (!option->val) continue;
        const std::string_view name = option->keyword;
        if (name == "password")
            return wrong(
                "the address has a password, which other users of this machine can read; write it "
                "into a file that PGPASSFILE names (HOST:PORT:DATABASE:USER:PASSWORD, mode 0600), "
                "or into the environment as PGPASSWORD");
        if (std::ranges::find(known_parameters, name) == known_parameters.end())
            return wrong(text("the parameter ", name, " is not allowed here"));
        if (name == "host") host = option->val;
        if (name == "dbname") database = option->val;
        if (name == "sslmode") mode = option->val;
        address.parameters_.emplace_back(name, option->val);
    }
    if (database.empty()) return wrong("the address names no database");

    const char* const usual_host = std::getenv("PGHOST");
    if (!is_here(host.empty() && usual_host ? usual_host : host)) {
        if (!mode.empty() && mode != "verify-full")
            return wrong(text("sslmode ", mode,
                              " does not verify the name of a host beyond this machine; leave it "
                              "out (verify-full), and name the certificate of its authority with "
                              "sslrootcert=FILE"));
        if (mode.empty()) address.parameters_.emplace_back("sslmode", "verify-full");
    }
    address.shown_ = text(host.empty() ? "local socket" : host, "/", database);
    return address;
}

}  // namespace moex
