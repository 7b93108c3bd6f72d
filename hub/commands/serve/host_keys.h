// The keys that open a hub to its clients: the host's own, from a file or the environment, and
// those that the hub makes at its first start.
#pragma once

#include <string>

#include "hub/options/options.h"
#include "hub/registry/registry.h"

namespace moex {

// Stores the host's own keys; one that was there before opens nothing any more. Reads all of them
// first: what cannot be read changes nothing.
Status keep_host_keys(const Settings& settings, Registry& registry);

struct MadeKeys {
    std::string api, admin;  // made just now, to be shown once; empty when there was one
};
// keep_host_keys(). Where keys are `required` and the registry has none, makes them.
// The join token of the link becomes a key of role join.
Result<MadeKeys> prepare_keys(const Settings& settings, Registry& registry, bool required);

}  // namespace moex
