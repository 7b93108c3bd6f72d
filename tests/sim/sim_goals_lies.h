// R4 as runs of whole tokens: what liars get through, and what is thought of who does not lie.
#pragma once

#include "tests/sim/sim_goal_swarm.h"

namespace moex::sim {

// 12 of 40 lie, in all eleven ways; `way`: how often and from when on. A hub with the weights
// checks: everything of who is new, then a share.
Goal liars(const GoalOptions& goal, const char* name, const WorkerProfile& way,
           std::uint32_t num_tokens, std::uint32_t num_streams, double changed_max);

// Forty who do not lie serve a token every half a minute, for days: nobody is accused, and who does
// not stall is never ejected. `stalls`: as usual_profile() does.
Goal honest_days(const GoalOptions& goal, double worker_days, bool stalls);

}  // namespace moex::sim
