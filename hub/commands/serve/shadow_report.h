// Reports on the shadow that a hub runs: its constants and counters for /api/status, and its
// counters for the log when the hub stops.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "hub/foresight/shadow/served_shadow.h"

namespace moex {

// `folder` is the DIR of --prefetch shadow:DIR. `per_row` is the number of experts that the shadow
// predicts for a row and layer.
nlohmann::json shadow_report(const std::string& folder, std::uint32_t per_row,
                             const ServedShadowCounters& counts);
void log_shadow(const ServedShadowCounters& counts);

}  // namespace moex
