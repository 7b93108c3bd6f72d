// `fixed h` where everything is independent: what the integral says.
#include "tests/sim/sim_theory.h"

#include <gtest/gtest.h>

#include <utility>

namespace moex::sim {
namespace {

// The corners, three deviations wide; moex-sim --theory has all of them, with 20,000 rounds each.
TEST(SimTheoryTest, FixedGivesWhatTheIntegralSays) {
    for (const auto& [copies, calls] : {std::pair{1u, 1u}, {1u, 8u}, {4u, 1u}, {4u, 8u}}) {
        const TheoryCell cell = measure_fixed(copies, calls, 1000, 1);
        EXPECT_NEAR(cell.deviation(), 0, 0.06) << "fixed " << copies << ", " << calls << " calls";
    }
}

}  // namespace
}  // namespace moex::sim
