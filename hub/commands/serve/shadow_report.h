// A shadow that serves: what it was asked for and what became of it, for /api/status, and the
// latter for the log when the hub stops.
#pragma once

#include <cstdint>

#include <nlohmann/json.hpp>

#include "hub/foresight/shadow/served_shadow.h"
#include "hub/options/options_shadow.h"

namespace moex {

// `per_row`: experts that are named for a row and layer.
nlohmann::json shadow_report(const ShadowWish& wish, std::uint32_t per_row,
                             const ServedShadowCounters& counts);
void log_shadow(const ServedShadowCounters& counts);

}  // namespace moex
