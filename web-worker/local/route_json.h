// The facts and the choice of hub/route/route.h as JSON, by which JavaScript calls it.
#pragma once

#include <nlohmann/json.hpp>

#include "hub/route/route.h"

namespace moex {

// Reads the facts that JavaScript knows, by their names in RouteFacts; the model adds the others
// (LocalModel::add_facts). `words` is "to_hub" or anything else; `here` and `hub` are objects. A
// member that is absent, or of another type, keeps its default.
RouteFacts read_route_facts(const nlohmann::ordered_json& json);

// An infinite time is null, as JSON has no such number.
nlohmann::ordered_json route_json(const RouteChoice& choice);

}  // namespace moex
