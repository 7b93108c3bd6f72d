// What the status page shows of the last hour, day and week: minutes of the registry, joined to
// steps. Pure.
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

// One point for each step up to `now_s` in which the hub ran: speed by the minutes in which it did,
// first token as the mean, quantiles of calls as the worst minute's, coverage as the worst.
nlohmann::json history_json(std::span<const HistoryMinute> minutes, const HistorySpan& span,
                            std::int64_t now_s);

}  // namespace moex::net
