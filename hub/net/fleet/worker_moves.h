// Which workers a hub asks to join another hub of its fleet.
//
// A hub that starts, or starts again, has no workers while the others have many. Each hub looks
// every few seconds at the members of the fleet, and at what its own workers hold, and asks one of
// them to join another hub:
// - by need: the other hub lacks clearly more copies of units (HubNeed in protocol/messages.h) than
//   this hub will lack without the worker;
// - for balance: no hub lacks clearly more, the other hub has at least two workers fewer, and this
//   hub will lack no more copies than now.
// A worker that alone has a unit ready is not asked. With a local backend it is, if the others have
// memory for its units: until they have loaded them, the hub computes them itself.
//
// A worker that computes layers whole (a span) has keys and values of the texts that are written.
// It is asked last, and while recent steps use its layers only if another worker with a record has
// them ready: a standby, which has the keys and values too. The hub gives layers to a standby as
// soon as a worker has room for them, so that the move follows then.
//
// Workers do not go to and fro. The first kind of move lowers the sum of the squares of what the
// hubs lack. The second kind raises nothing, and lowers the sum of the squares of their numbers of
// workers. So each sequence of moves ends, as far as the hubs see each other as they are; a hub
// therefore waits until the members show its last move.
//
// All hubs see the same members, so if all of them acted, a hub that lacks one worker would get one
// of each hub, and lose them again. A hub therefore acts with the probability that makes as many
// workers move, over all hubs, as the poorest hub lacks to the mean, or one.
//
// Limits: a difference of one worker is left as it is. With --replicas 1 and without a local
// backend a hub gives only workers whose units have spare copies. Hubs that report no units, since
// they take no workers or are of an earlier version, are given none.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
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

// What a member needs, as it has reported.
HubNeed need_of(const Member& member);

// The places that WELCOME lists: this hub, and the others like it. Those that lack most come first,
// then those with the fewest workers.
FleetPlaces places_of(const Member& self, std::span<const Member> members);

struct MoveInputs {
    const Member& self;
    std::span<const Member> members;
    std::span<const WorkerView> workers;  // of this hub
    const UnitCopies& copies;             // without those of `asked`
    // Workers that were asked on their present connections: they have a reason to stay, or leave.
    const std::set<WorkerId>& asked;
    bool computes_experts = false;  // this hub has a local backend
    double uniform = 0;             // random, in [0, 1)
};
struct MoveChoice {
    std::optional<WorkerMove> move;
    // no worker is asked, because each of them alone has a unit ready, or layers in use
    bool keeps_holders = false;
};

// What this hub needs once the worker has left and the others have loaded what they have memory
// for.
HubNeed need_without(const UnitCopies& copies, WorkerId worker, bool computes_experts);

// Chooses a worker to move, or none.
MoveChoice choose_move(const MoveInputs& inputs);

// When a hub chooses the next worker to move: once in ten looks, and not before the members show
// that the last one has moved. A hub looks once a second.
class MovePause {
  public:
    // Members are six seconds old at most. A worker that stays longer does not follow.
    static constexpr std::uint32_t seen_looks = 7, leave_looks_max = 20, choose_every_looks = 10;

    // `moving`: a worker that was asked is still connected.
    void look(bool moving) {
        if (left_ > 0) --left_;
        if (moving) left_ = std::max(left_, seen_looks);
    }
    bool is_over() const { return left_ == 0; }
    void decided() { left_ = choose_every_looks; }

  private:
    std::uint32_t left_ = choose_every_looks;
};

// Whether the workers of a hub have to be sent the other hubs again: at once if others live than
// before, and every ten looks if a hub needs clearly more or less than they know.
class HubNews {
  public:
    bool changes(std::span<const HubPlace> others, std::uint32_t look);

  private:
    static constexpr std::uint32_t needs_every_looks = 10;
    std::map<std::string, double> lacks_;  // by hub
    std::uint32_t sent_at_ = 0;
};

}  // namespace moex::net
