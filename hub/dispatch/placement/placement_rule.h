// What a host may choose: how experts find the workers that shall hold them. Its words;
// placement.h acts on them.
// Source of groups: OD-MoE, on-demand experts without a cache, where a group of workers loads the
// experts of a coming layer while the other groups compute.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

inline constexpr std::uint32_t worker_groups_max = 64;

enum class PlacementRule : std::uint8_t {
    fan_out,  // few workers a layer: few frames a round
    hash,     // each expert by itself: a layer lies on as many workers as there are
    groups,   // MoE layer l at the workers of group l mod `num_groups`, evenly among these
};

struct PlacementChoice {
    PlacementRule rule = PlacementRule::fan_out;
    std::uint32_t num_groups = 1;  // of `groups`: 1 to worker_groups_max
};

// "fan-out", "hash" or "groups N"; a colon does instead of the space.
Result<PlacementChoice> parse_placement(std::string_view choice);
std::string placement_text(const PlacementChoice& choice);

}  // namespace moex
