#include "hub/registry/token_buckets.h"

#include <algorithm>

#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::string_view bucket_now_ms =
    "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)";

// The SQL of a bucket's level now. A bucket refills evenly, and holds the tokens of one minute.
std::string level_now(std::string_view per_minute) {
    return text("least(", per_minute, ", b.level + ", per_minute, " * greatest(0, ", bucket_now_ms,
                " - b.at_ms) / 60000.0)");
}

constexpr std::string_view number = "CAST(? AS DOUBLE PRECISION)";

Result<TokenReservation> wait_of(Database& database, std::string_view key_id,
                                 std::uint64_t per_minute, std::uint64_t wanted) {
    Statement select(database, text("SELECT CAST(ceil((", number, " - ", level_now("b.per_minute"),
                                    ") * 60000 / ", number,
                                    ") AS BIGINT) FROM token_buckets b WHERE key_id = ?"));
    select.bind(static_cast<std::int64_t>(wanted)).bind(static_cast<std::int64_t>(per_minute));
    const std::int64_t wait_ms = select.bind(key_id).step() ? select.integer(0) : 0;
    MOEX_TRY(select.status());
    return TokenReservation{.wait = std::chrono::milliseconds(std::max<std::int64_t>(1, wait_ms))};
}

}  // namespace

Result<TokenReservation> reserve_tokens(Database& database, std::string_view key_id,
                                        std::uint64_t per_minute, std::uint64_t tokens_max) {
    const std::uint64_t wanted = std::min(tokens_max, per_minute);
    const auto limit = static_cast<std::int64_t>(per_minute),
               asked = static_cast<std::int64_t>(wanted);
    // A single statement reads and takes the tokens, so that no two hubs take the same ones.
    // `excluded.level` is the level of a full bucket after this reservation.
    const std::string level = level_now("excluded.per_minute");
    Statement take(
        database,
        text("INSERT INTO token_buckets AS b (key_id, per_minute, level, at_ms) VALUES "
             "(?, ?, ",
             number, ", ", bucket_now_ms,
             ") ON CONFLICT (key_id) DO UPDATE SET per_minute = excluded.per_minute, "
             "level = ",
             level, " - excluded.per_minute + excluded.level, at_ms = greatest(b.at_ms, ",
             "excluded.at_ms) WHERE ", level, " >= excluded.per_minute - excluded.level"));
    MOEX_TRY(take.bind(key_id).bind(limit).bind(limit - asked).run());
    if (take.num_changed() == 1) return TokenReservation{.tokens = wanted};
    return wait_of(database, key_id, per_minute, wanted);
}

Status return_tokens(Database& database,
                     const std::map<std::string, std::int64_t, std::less<>>& tokens) {
    for (const auto& [key_id, count] : tokens) {
        Statement give(database,
                       text("UPDATE token_buckets AS b SET level = least(b.per_minute, ",
                            level_now("b.per_minute"), " + ", number,
                            "), at_ms = greatest(b.at_ms, ", bucket_now_ms, ") WHERE key_id = ?"));
        MOEX_TRY(give.bind(count).bind(std::string_view(key_id)).run());
    }
    return {};
}

}  // namespace moex
