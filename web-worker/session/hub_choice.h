// The order in which a worker tries the hubs of a fleet, and whether it leaves a hub for another
// one by itself.
//
// A worker joins the hub that needs it most: first by what the hubs lack, then by the measured
// round trip, then by load. Each of them counts in steps, so that a small difference in the first
// does not decide against a large one in the next. Hubs whose steps are equal come in a random
// order: all workers of a hub that ends would otherwise join the same one. Limit: what the hubs
// lack is some seconds old, so that a crowd that arrives at one time joins the neediest hub
// together. The hubs then ask those that they can spare to move on (HUBS).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "protocol/messages.h"

namespace moex {

struct HubOption {
    HubNeed need;
    std::optional<double> rtt_ms;  // nullopt: not measured
};

// Returns the indexes of `hubs`, the best one first. `random` returns numbers in [0, 1); an empty
// function keeps the given order among equals.
std::vector<std::size_t> rank_hubs(std::span<const HubOption> hubs,
                                   const std::function<double()>& random);

// Returns whether a worker that has just joined the fleet at `here`, and holds nothing there, joins
// `other` instead: it lacks clearly more, or it lacks no less and is much nearer.
bool is_clearly_better(const HubOption& other, const HubOption& here);

}  // namespace moex
