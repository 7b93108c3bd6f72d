// The table of bans in a database: its rules and its statements. For the two BanBooks alone.
#pragma once

#include <optional>
#include <vector>

#include "hub/registry/bans.h"
#include "hub/registry/database.h"

namespace moex {

// Returns when the ban number `times` of a key ends.
std::int64_t ban_end_s(std::uint32_t times, std::int64_t now_s, std::int64_t least_s);

// A ban as it was ordered.
struct BanOrder {
    std::string worker_key, nickname, reason;
    std::int64_t now_s = 0, least_s = 0;
};
// Writes a ban in a transaction of its own.
Result<Ban> write_ban(Database& database, const BanOrder& order);
Result<std::vector<Ban>> read_bans(Database& database);  // the latest first
Result<Ban> remove_ban(Database& database, std::string_view worker_key_begin);

}  // namespace moex
