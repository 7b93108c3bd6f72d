// The schema of a store as numbered steps, from 0001 without gaps: migrations/NNNN_words.sql for
// sqlite, migrations/postgres/NNNN_words.sql for PostgreSQL. A database records the last step that
// it took (sqlite's user_version, the table schema_steps of PostgreSQL). A released step is never
// edited; a later change is a new step.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/result.h"

namespace moex {

class Database;

struct Migration {
    std::int64_t number = 0;
    std::string_view name;  // the step's file name without ".sql"
    std::string_view sql;
};
std::span<const Migration> registry_migrations();  // sqlite
std::span<const Migration> postgres_migrations();  // hub/registry/migrations/postgres

// Checks that `database` took no step that this program does not know (error `unsupported`).
Status check_schema(Database& database, std::span<const Migration> steps);

// Takes the migration steps that `database` has not taken yet, each in a separate transaction. A
// step that fails changes nothing, and the error names it. Error `unsupported`: the database took
// steps that this program does not know. Two processes may call this at the same time.
Status migrate(Database& database, std::span<const Migration> steps);

}  // namespace moex
