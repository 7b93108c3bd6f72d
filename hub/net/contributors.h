// Whose workers are connected, as far as they have signed it, and what each did since it was
// counted last: the registry adds it up.
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
    // From here on what it does is `identity`'s, whose signature was found right.
    void identified(WorkerId worker, const Identity& identity);
    // `verifies`: the hub computes answers again; else nothing of it counts as verified.
    void count(const WorkerView& worker, bool verifies);
    void left(const WorkerView& worker, bool verifies);
    // What its workers do from here on is nobody's.
    void forget(const PublicKey& key);

  private:
    struct Live {
        std::optional<Identity> identity;
        bool is_new = false;  // the registry has not heard of it
        LentWork counted;
    };
    Registry& registry_;
    std::map<WorkerId, Live> live_;
};

}  // namespace moex::net
