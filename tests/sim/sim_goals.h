// Measures the reliability goals R1 to R8 and returns one table row for each goal.
#pragma once

#include "tests/sim/sim_goal_swarm.h"

namespace moex::sim {

// Measures the goals that `options.only` selects, in the order R1 to R8.
std::vector<Goal> measure_goals(const GoalOptions& options);

}  // namespace moex::sim
