// The keys of a hub's clients: the operator's own keys, from a file or the environment, and the
// keys that the hub makes at its first start.
#pragma once

#include <string>

#include "hub/commands/serve/serve_settings.h"
#include "hub/registry/registry.h"

namespace moex {

// Stores the operator's own keys. An earlier key that one of them replaces is no longer valid. All
// keys are read first: if one key cannot be read, nothing changes.
Status keep_host_keys(const KeySettings& keys, Registry& registry);

struct MadeKeys {
    std::string api, admin;  // new keys, to be shown once; empty if such a key already existed
};
// Calls keep_host_keys(). If clients must have keys (`required`) and the registry has none, this
// function makes keys. The join token of the join link becomes a key of role join.
Result<MadeKeys> prepare_keys(const KeySettings& keys, Registry& registry, bool required);

}  // namespace moex
