// The state database's schema as numbered steps: hub/registry/migrations/NNNN_words.sql, from 0001
// without gaps. A database is at the number of the last step it took (sqlite's user_version).
// A step that has been released is never edited: what comes after it is a step of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/result.h"

namespace moex {

class Database;

struct Migration {
    std::int64_t number = 0;
    std::string_view name;  // of the file, without ".sql"
    std::string_view sql;
};
std::span<const Migration> registry_migrations();

// Takes the steps that `database` has not taken, each in a transaction of its own: one that fails
// changes nothing, and the error names it. `unsupported`: the database took steps not known here.
// Two processes may do this at once.
Status migrate(Database& database, std::span<const Migration> steps);

}  // namespace moex
