// The JSON of /health and /api/status; its shape is given in server.h. Swarm strand.
#pragma once

#include <nlohmann/json.hpp>

#include "hub/net/hub_context.h"

namespace moex::net {

nlohmann::json health_json(const HubContext& hub, unsigned& http_status);
nlohmann::json status_json(HubContext& hub, bool with_join_url);
MetricsSnapshot metrics_snapshot(const HubContext& hub);

}  // namespace moex::net
