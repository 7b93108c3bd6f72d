// Checks the simulated time of a round under `fixed h` with independent latencies against the
// integral that theory gives.
#include "tests/sim/sim_theory.h"

#include <gtest/gtest.h>

#include <utility>

namespace moex::sim {
namespace {

// This test checks that the corner cases agree within three standard deviations. moex-sim --theory
// measures all cases, with 20,000 rounds each.
TEST(SimTheoryTest, FixedMatchesTheIntegral) {
    for (const auto& [copies, calls] : {std::pair{1u, 1u}, {1u, 8u}, {4u, 1u}, {4u, 8u}}) {
        const TheoryCell cell = measure_fixed(copies, calls, 1000, 1);
        EXPECT_NEAR(cell.deviation(), 0, 0.06) << "fixed " << copies << ", " << calls << " calls";
    }
}

}  // namespace
}  // namespace moex::sim
