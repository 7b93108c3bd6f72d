// The goals of reliability as one table: what holds and what does not.
#pragma once

#include "tests/sim/sim_goal_swarm.h"

namespace moex::sim {

std::vector<Goal> measure_goals(const GoalOptions& options);

}  // namespace moex::sim
