// Provides the options and final checks that several tests of simulated swarms share.
#pragma once

#include <gtest/gtest.h>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {

inline SimOptions no_workers() {
    SimOptions options{.num_workers = 0, .seed = 3, .log = true};
    options.swarm.rounding.deterministic = true;
    return options;
}

inline SimOptions two_workers() {
    SimOptions options{.num_workers = 2, .seed = 7, .log = true};
    options.swarm.rounding.deterministic = true;
    return options;
}

inline void expect_exact(const SimSwarm& swarm, RoundId round) {
    const RoundOutcome& outcome = swarm.outcome(round);
    ASSERT_TRUE(outcome.answer.has_value()) << "round " << round << " is open";
    ASSERT_TRUE(outcome.answer->ok()) << outcome.answer->error().message;
    EXPECT_EQ(outcome.y, outcome.want);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

}  // namespace moex::sim
