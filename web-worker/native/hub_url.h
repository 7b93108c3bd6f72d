// The parts of a hub's URL: ws://host:port, wss://..., or a join link
// http://host:port/join.html#token=... A proxy may serve the hub below a path: wss://host/moex.
#pragma once

#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex::native {

struct HubUrl {
    bool tls = false;
    std::string host;  // without brackets
    std::string port;
    std::string path;   // the path below which the hub is served: "", or "/moex"
    std::string token;  // the token in a join link's fragment; may be empty
    // The hub of a fleet that a balancer at this address shall choose; empty: any.
    std::string hub_id;
    std::string authority() const {
        return text(host.find(':') == std::string::npos ? host : text('[', host, ']'), ':', port);
    }
    // The target of the upgrade request.
    std::string worker_target() const {
        return text(path, "/worker", hub_id.empty() ? "" : "?hub=", hub_id);
    }
};
Result<HubUrl> parse_hub_url(std::string_view url);

}  // namespace moex::native
