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
// Parses the name of a time span: "1h", "24h" or "7d".
std::optional<HistorySpan> parse_history_span(std::string_view name);

// Returns one point for each step up to `now_s` in which the hub ran. In each point the speed is
// averaged over the minutes in which the hub ran, the time to the first token is the mean over
// answers, and the call quantiles and the coverage are those of the worst minute.
nlohmann::json history_json(std::span<const HistoryMinute> minutes, const HistorySpan& span,
                            std::int64_t now_s);

}  // namespace moex::net
