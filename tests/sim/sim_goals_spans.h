// The reliability goals with spans: workers that compute several layers whole, behind 20 ms.
#pragma once

#include "tests/sim/sim_goal_swarm.h"

namespace moex::sim {

Goal spans_tail(const GoalOptions& goal);         // R1: a share of the answers stalls
Goal spans_half_killed(const GoalOptions& goal);  // R2
Goal spans_liars(const GoalOptions& goal);        // R4: new workers that lie in every answer
Goal spans_all_fail(const GoalOptions& goal);     // R6: every step fails for a minute

}  // namespace moex::sim
