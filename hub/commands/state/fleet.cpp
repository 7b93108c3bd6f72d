// moex-hub fleet: lists the hubs that share a store.
#include <cstdio>

#include <nlohmann/json.hpp>

#include "hub/commands/command.h"
#include "hub/commands/output.h"
#include "hub/commands/state_folder.h"

namespace moex {
namespace {

std::string lease_words(const Member& hub) {
    const std::int64_t seconds = hub.left_ms / 1000;
    return hub.left_ms > 0 ? text("lives, lease of ", seconds, " s")
                           : text("gone for ", -seconds, " s");
}

nlohmann::json fleet_json(const std::vector<Member>& hubs) {
    nlohmann::json rows = nlohmann::json::array();
    for (const Member& hub : hubs)
        rows.push_back({{"hub", hub.hub_id},
                        {"incarnation", hub.fence},
                        {"lives", hub.left_ms > 0},
                        {"lease_ms", hub.left_ms},
                        {"address", hub.address},
                        {"model", hub.model},
                        {"package", hub.package_sha256},
                        {"version", hub.version},
                        {"streams", hub.streams},
                        {"workers", hub.workers}});
    return rows;
}

}  // namespace

int run_fleet(const Invocation& invocation) {
    if (invocation.settings.text("store").empty()) {
        fail("--store URL names the store that the hubs share; a hub without it is alone");
        return exit_wrong_arguments;
    }
    const auto registry = open_registry_of(invocation.settings, "hubs", false);
    if (!registry.ok()) return fail(registry.error().message);
    const auto hubs = (*registry)->membership()->watch();
    if (!hubs.ok()) return fail(hubs.error().message);

    std::string out;
    if (invocation.argument("--json"))
        out = fleet_json(*hubs).dump(2) + '\n';
    else
        for (const Member& hub : *hubs)
            out += text(hub.hub_id, "  ", lease_words(hub), ", ", hub.streams, " streams, ",
                        hub.workers, " workers, ", one_line(hub.model), ", version ",
                        one_line(hub.version), ", ", one_line(hub.address), '\n');
    (void)print_now(out);
    return exit_stopped;
}

}  // namespace moex
