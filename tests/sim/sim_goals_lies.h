// Measures goal R4 by runs of whole tokens: how many false answers of liars pass the checks, and
// whether the hub accuses honest workers.
#pragma once

#include "tests/sim/sim_goal_swarm.h"

namespace moex::sim {

// Measures a swarm in which 12 of 40 workers lie, with all eleven kinds of lies. `way` gives how
// often and from which answer on the workers lie. The hub has the weights and checks answers: of a
// new worker all answers, later a share of them. The goal allows at most `changed_max` tokens with
// a false row.
Goal liars(const GoalOptions& goal, const char* name, const WorkerProfile& way,
           std::uint32_t num_tokens, std::uint32_t num_streams, double changed_max);

// Measures forty honest workers that serve one token every 30 s. The run is as long as gives
// `worker_days` days, summed over the workers. The goal: no worker is accused, and without stalls
// none is ejected. With `stalls`, groups stall as in usual_profile().
Goal honest_days(const GoalOptions& goal, double worker_days, bool stalls);

}  // namespace moex::sim
