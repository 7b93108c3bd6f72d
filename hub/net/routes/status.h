// Makes the JSON of /health and /api/status; tests/hub/net/routes/status_test.cpp fixes the fields
// of /api/status. Called on the swarm strand, unless a function says otherwise.
#pragma once

#include <nlohmann/json.hpp>

#include "hub/net/hub_context.h"

namespace moex::net {

// `prompts_kept_hours`: ServerOptions. Any thread.
nlohmann::json health_json(const Health& health, std::uint32_t prompts_kept_hours);
nlohmann::json status_json(HubContext& hub, bool with_join_url);
MetricsSnapshot metrics_snapshot(const HubContext& hub);

}  // namespace moex::net
