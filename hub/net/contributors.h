// Attributes the work of connected workers to contributors. A worker belongs to a contributor once
// it has signed with the contributor's key. This class counts what each worker did since the last
// count, and the registry adds the counts up.
// Owner: the swarm's strand.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "hub/dispatch/swarm_types.h"
#include "hub/registry/registry.h"
#include "protocol/identity.h"

namespace moex::net {

class Contributors {
  public:
    explicit Contributors(Registry& registry) : registry_(registry) {}

    void joined(WorkerId worker);
    // Attributes the later work of `worker` to `identity`. The caller has verified the signature.
    void identified(WorkerId worker, const Identity& identity);
    // Adds the work that workers did since the previous call to the registry. `verifies`: the hub
    // checks answers by computing them again; if false, no work counts as verified.
    void count(const WorkerView& worker, bool verifies);
    void left(const WorkerView& worker, bool verifies);
    // Work that the workers of `key` do after this call is not attributed to any contributor.
    void forget(const PublicKey& key);

  private:
    struct Live {
        std::optional<Identity> identity;
        bool is_new = false;  // true: the contributor was not reported to the registry yet
        LentWork counted;
    };
    Registry& registry_;
    std::map<WorkerId, Live> live_;
};

}  // namespace moex::net
