// Converts the settings of `moex-hub serve` to the options of the parts that serve: server, swarm,
// and the list of settings on the operator page. serve_settings.h reads the settings.
#pragma once

#include <memory>

#include <nlohmann/json.hpp>

#include "hub/commands/serve/serve_settings.h"
#include "hub/dispatch/swarm_types.h"
#include "hub/model/package/package.h"
#include "hub/net/server_options.h"
#include "hub/options/options.h"
#include "hub/registry/registry.h"

namespace moex {

net::ServerOptions server_options_of(const ServeSettings& settings);

// Returns every setting of serve for the operator page, as [{name, value, source, help}].
nlohmann::json describe_settings(const Settings& settings);

// Returns true if a SIGHUP may change the setting while the hub serves.
bool changes_while_serving(std::string_view setting);

// Returns the number of experts to predict for a row and layer (--prefetch). 0: no prediction.
std::uint32_t prefetch_per_row(const PrefetchSettings& prefetch, const ModelConfig& model);

// Returns the largest number of micro-batches that a step may have: the number that a setting
// fixes, or otherwise the limit by --queue-depth below which the engine measures the best number.
std::uint32_t micro_batches_max(const ServeSettings& settings);

// Returns the options of the swarm. `registry` checks the tokens of workers and outlives the swarm.
SwarmOptions swarm_options_of(const ServeSettings& settings,
                              const std::shared_ptr<const ModelPackage>& package,
                              const Registry& registry);

// Checks that this machine can compute the experts of `count` layers alone (--own-layers).
Status check_own_layers(std::uint32_t count, bool contributors_compute,
                        const ModelPackage& package);

}  // namespace moex
