#include "hub/net/front/stop_event.h"

#include <nlohmann/json.hpp>

#include "hub/api/hub_stops.h"

namespace moex::net {

bool says_that_it_stops(const std::string& data) {
    if (data.find(hub_stops_code) == std::string::npos) return false;
    const auto event = nlohmann::json::parse(data, nullptr, false);
    const auto has_code = [](const nlohmann::json& object) {
        const auto code = object.is_object() ? object.find("code") : object.end();
        return object.is_object() && code != object.end() && *code == hub_stops_code;
    };
    const auto has_error = [&](const nlohmann::json& object) {
        if (!object.is_object() || !object.contains("error")) return false;
        return has_code(object["error"]) || (object["error"].is_string() && has_code(object));
    };
    return has_error(event) ||
           (event.is_object() && event.contains("response") && has_error(event["response"]));
}

}  // namespace moex::net
