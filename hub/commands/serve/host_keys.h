// The keys of a hub's clients: the operator's own keys, from a file or the environment, and the
// keys that the hub makes at its first start.
#pragma once

#include <string>

#include "hub/commands/serve/serve_settings.h"
#include "hub/registry/registry.h"

namespace moex {

// Stores the operator's own keys. A key that they replace is no longer valid. All keys are read
// first: if one cannot be read, nothing changes.
Status keep_host_keys(const KeySettings& keys, Registry& registry);

struct MadeKeys {
    std::string api, admin;  // new keys, to be shown once; empty if the registry had one
};
// Calls keep_host_keys(). If keys are `required` and the registry has none, this function makes
// them. The join token of the link becomes a key of role join.
Result<MadeKeys> prepare_keys(const KeySettings& keys, Registry& registry, bool required);

}  // namespace moex
