// The history that the status page shows for the last hour, day and week: minutes of the registry,
// combined into steps. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

#include "hub/registry/registry.h"

namespace moex::net {

struct HistorySpan {
    std::int64_t span_s = 0, step_s = 0;
};
// "1h", "24h" or "7d".
std::optional<HistorySpan> parse_history_span(std::string_view name);

// Returns one point for each step up to `now_s` in which the hub ran. The speed is over the minutes
// in which it ran, the time to the first token is the mean, the quantiles of calls are those of the
// worst minute, and the coverage is the worst.
nlohmann::json history_json(std::span<const HistoryMinute> minutes, const HistorySpan& span,
                            std::int64_t now_s);

}  // namespace moex::net
