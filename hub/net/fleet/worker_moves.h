// Which workers a hub asks to join another hub of its fleet.
//
// A hub that starts, or starts again, has no workers while the others have many. Each hub looks
// every few seconds at the members of the fleet, and asks one of its workers to join the hub with
// the fewest. All hubs see the same members, so if all of them acted, a hub that lacks one worker
// would get one of each hub, and lose them again. A hub therefore acts with the probability that
// makes as many workers move, over all hubs, as the poorest hub lacks to the mean.
//
// A worker that moves leaves after ten seconds, whatever it has handed over. Where the hub computes
// no experts itself, a worker is therefore asked only if each expert keeps a holder without it, and
// without the workers that were asked before and may still go.
//
// Limits: hubs are compared by their numbers of workers, not by the experts that these hold. A
// difference of one is left as it is. A hub without a local backend gives no worker away if its
// experts have one holder each (--replicas 1), nor while a worker that was asked could not go.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <vector>

#include "hub/dispatch/swarm_types.h"
#include "hub/registry/membership.h"

namespace moex::net {

struct WorkerMove {
    WorkerId worker = 0;
    HubPlace hub;
};

// Returns true for the members that serve what `self` serves, and whose leases last.
bool is_alike(const Member& self, const Member& other);

// The places that WELCOME lists: this hub, and the others like it, the fewest workers first.
FleetPlaces places_of(const Member& self, std::span<const Member> members);

// Returns true if each expert keeps a holder when one more worker leaves. `asked`: see choose_move.
bool can_spare_one(const Coverage& coverage, std::span<const WorkerView> workers,
                   const std::set<WorkerId>& asked);

// Chooses a worker to move, or none. `asked` has the workers that were asked on their present
// connections: they have a reason to stay. `uniform` is random, in [0, 1).
std::optional<WorkerMove> choose_move(const Member& self, std::span<const Member> members,
                                      std::span<const WorkerView> workers,
                                      const std::set<WorkerId>& asked, double uniform);

}  // namespace moex::net
