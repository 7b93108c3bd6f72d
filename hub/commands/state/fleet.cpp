// moex-hub fleet: lists the hubs that share a store, or writes a key for them.
#include <cstdio>

#include <nlohmann/json.hpp>

#include "hub/commands/command.h"
#include "hub/commands/output.h"
#include "hub/commands/state_folder.h"
#include "hub/registry/fleet_key.h"

namespace moex {
namespace {

std::string lease_words(const Member& hub) {
    const std::int64_t seconds = hub.left_ms / 1000;
    return hub.left_ms > 0 ? text("lives, lease of ", seconds, " s")
                           : text("gone for ", -seconds, " s");
}

// Returns what the workers of a hub lack, in words; empty if the hub takes none or lacks nothing.
std::string lack_words(const Member& hub) {
    std::string words;
    if (hub.missing > 0) words = text(", lacks ", hub.missing, " of ", hub.units, " experts");
    if (hub.thin > 0) words += text(", ", hub.thin, " experts with too few copies");
    return words;
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
                        {"workers", hub.workers},
                        {"units", hub.units},
                        {"units_missing", hub.missing},
                        {"units_thin", hub.thin}});
    return rows;
}

int write_key(const std::string* file) {
    if (!file) {
        fail("fleet key wants a FILE to write");
        return exit_wrong_arguments;
    }
    const Status made = FleetKey::make(*file);
    if (!made.ok()) return fail(made.error().message);
    std::fprintf(stderr, "%s: a new fleet key; copy it to each hub, serve --fleet-key %s\n",
                 one_line(*file).c_str(), one_line(*file).c_str());
    return exit_stopped;
}

}  // namespace

int run_fleet(const Invocation& invocation) {
    if (const std::string* const action = invocation.argument("ACTION")) {
        if (*action == "key") return write_key(invocation.argument("FILE"));
        fail(text("fleet has no action \"", *action, "\"; it has: key"));
        return exit_wrong_arguments;
    }
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
                        hub.workers, " workers", hub.left_ms > 0 ? lack_words(hub) : "", ", ",
                        one_line(hub.model), ", version ", one_line(hub.version), ", ",
                        one_line(hub.address), '\n');
    (void)print_now(out);
    return exit_stopped;
}

}  // namespace moex
