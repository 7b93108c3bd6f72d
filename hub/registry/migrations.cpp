#include "hub/registry/migrations.h"

#include "hub/base/log.h"
#include "hub/registry/database.h"

namespace moex {
namespace {

Status take(Database& database, const Migration& step) {
    Transaction transaction(database);
    MOEX_TRY(transaction.begun());
    MOEX_ASSIGN(version, database.schema_version());
    if (version >= step.number) return {};  // another process has just taken this step

    MOEX_TRY(database.execute(std::string(step.sql)));
    MOEX_TRY(database.set_schema_version(step.number, step.name));
    return transaction.commit();
}

}  // namespace

Status check_schema(Database& database, std::span<const Migration> steps) {
    MOEX_ASSIGN(found, database.schema_version());
    const std::int64_t known = steps.empty() ? 0 : steps.back().number;
    if (found <= known) return {};
    return Error{ErrorCode::unsupported, text("schema version ", found, ", this hub knows ", known,
                                              "; made by a newer moex-hub")};
}

Status migrate(Database& database, std::span<const Migration> steps) {
    MOEX_TRY(check_schema(database, steps));
    MOEX_ASSIGN(found, database.schema_version());
    for (const Migration& step : steps) {
        if (step.number <= found) continue;
        if (const Status taken = take(database, step); !taken.ok())
            return Error{taken.error().code,
                         text("migration ", step.name, ": ", taken.error().message)};
        if (found > 0)
            log_info("registry: schema upgraded", kv("from", found), kv("step", step.name));
    }
    return {};
}

}  // namespace moex
