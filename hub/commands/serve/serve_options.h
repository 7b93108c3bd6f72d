// The settings of `moex-hub serve` as the options of the rooms that serve.
#pragma once

#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "hub/dispatch/swarm_types.h"
#include "hub/model/package/package.h"
#include "hub/net/server_options.h"
#include "hub/options/options.h"
#include "hub/options/options_shadow.h"
#include "hub/registry/registry.h"

namespace moex {

// invalid_argument where two settings contradict each other: nothing was started yet.
Status check_serve_settings(const Settings& settings);

net::ServerOptions server_options_of(const Settings& settings);

// Every setting of serve as the admin page shows it: [{name, value, source, help}].
nlohmann::json describe_settings(const Settings& settings);

// What SIGHUP may change.
bool changes_while_serving(std::string_view setting);

// Of --prefetch shadow:NAME; nullopt where none is wanted.
std::optional<ShadowWish> shadow_wish(const Settings& settings);
// Experts that are hinted for a row and layer (--prefetch): 0 for none.
std::uint32_t prefetch_per_row(const Settings& settings, const ModelConfig& model);

// --micro-batches: 0 for auto; and the most that may be chosen.
std::uint32_t micro_batches_of(const Settings& settings);
std::uint32_t micro_batches_max(const Settings& settings);

// `registry` outlives the swarm: it knows the tokens of workers.
SwarmOptions swarm_options_of(const Settings& settings,
                              const std::shared_ptr<const ModelPackage>& package,
                              const Registry& registry);

}  // namespace moex
