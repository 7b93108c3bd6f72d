// The operator's choice of a placement rule: how experts are assigned to workers. This header has
// the options and their text form; placement.h implements them. Source of `groups`: OD-MoE,
// on-demand experts without a cache, in which a group of workers loads the experts of a coming
// layer while the other groups compute.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

inline constexpr std::uint32_t worker_groups_max = 64;

enum class PlacementRule : std::uint8_t {
    fan_out,  // few workers hold a layer, so a round needs few frames
    hash,     // each expert is placed independently: a layer is spread over all workers
    groups,   // MoE layer l is held by the workers of group l mod `num_groups`, evenly among them
};

struct PlacementChoice {
    PlacementRule rule = PlacementRule::fan_out;
    std::uint32_t num_groups = 1;  // number of groups for the rule `groups`: 1 to worker_groups_max
};

// Parses "fan-out", "hash" or "groups N"; a colon may replace the space.
Result<PlacementChoice> parse_placement(std::string_view choice);
std::string placement_text(const PlacementChoice& choice);

}  // namespace moex
