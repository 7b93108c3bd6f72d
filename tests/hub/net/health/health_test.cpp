// Tests of the health states: each test passes samples of the swarm's counters, with a clock that
// it sets.
#include "hub/net/health/health.h"

#include <gtest/gtest.h>

namespace moex::net {
namespace {

class HealthJudgeTest : public testing::Test {
  protected:
    HealthState after(Duration pause) {
        now_ += pause;
        health_ = judge_.judge(now_, sample_);
        return health_.state;
    }
    HealthJudge judge_;
    HealthSample sample_{.units = 8, .covered = 8, .active_workers = 1};
    TimePoint now_{};
    Health health_;
};

TEST_F(HealthJudgeTest, CoveredSwarmWithoutRequestsIsOk) {
    EXPECT_EQ(after(0s), HealthState::ok);
    EXPECT_EQ(after(1h), HealthState::ok);
    EXPECT_TRUE(health_.reason.empty());
}

TEST_F(HealthJudgeTest, AnExpertWithoutAnAnswererIsUncovered) {
    sample_.covered = 7;
    EXPECT_EQ(after(0s), HealthState::uncovered);
    EXPECT_EQ(health_.reason, "1 of 8 experts have no worker that could answer");
    sample_.covered = 8;
    EXPECT_EQ(after(250ms), HealthState::ok);
}

TEST_F(HealthJudgeTest, UnitsOfALostWorkerThatMayReturnAreNotCovered) {
    sample_.covered = 5;
    sample_.returning = 2;
    EXPECT_EQ(after(0s), HealthState::uncovered);
    EXPECT_EQ(health_.returning, 2u);
    EXPECT_EQ(health_.reason,
              "3 of 8 experts have no worker that could answer; a lost worker that may return had "
              "2 of these");
}

// Silent workers and busy workers look the same to the judge: calls were sent, and no answer
// arrives.
TEST_F(HealthJudgeTest, SilenceWhileARoundWaitsIsDegradedLongBeforeItsDeadline) {
    sample_.rounds = sample_.rounds_open = 1;
    EXPECT_EQ(after(0s), HealthState::ok);
    EXPECT_EQ(after(1900ms), HealthState::ok);
    EXPECT_EQ(after(200ms), HealthState::degraded);
    EXPECT_NE(health_.reason.find("no worker has answered for 2 s"), std::string::npos)
        << health_.reason;

    sample_.answers = 1;
    EXPECT_EQ(after(250ms), HealthState::ok);
}

TEST_F(HealthJudgeTest, SteadyAnswersAreOkHoweverLongARoundIsOpen) {
    sample_.rounds = sample_.rounds_open = 1;
    for (int i = 0; i < 20; ++i) {
        ++sample_.answers;
        EXPECT_EQ(after(1500ms), HealthState::ok) << i;
    }
}

TEST_F(HealthJudgeTest, AFailedRoundIsRememberedUntilOneSucceedsOrHalfAMinuteHasPassed) {
    sample_.rounds = sample_.rounds_open = 1;
    after(0s);
    sample_.rounds_open = 0;
    sample_.rounds_failed = 1;
    EXPECT_EQ(after(250ms), HealthState::degraded);
    EXPECT_NE(health_.reason.find("the last round failed"), std::string::npos);

    // A cancelled round ends without an answer and does not change the state.
    sample_.rounds = 2;
    EXPECT_EQ(after(1s), HealthState::degraded);

    sample_.rounds = 3;
    ++sample_.answers;
    EXPECT_EQ(after(1s), HealthState::ok);

    sample_.rounds = 4;
    sample_.rounds_failed = 2;
    EXPECT_EQ(after(1s), HealthState::degraded);
    EXPECT_EQ(after(29s), HealthState::degraded);
    EXPECT_EQ(after(2s), HealthState::ok) << "nobody has asked since";
}

TEST_F(HealthJudgeTest, WithLocalFallbackThisMachineAnswers) {
    sample_.local_fallback = true;
    sample_.rounds = sample_.rounds_open = 1;
    after(0s);
    EXPECT_EQ(after(10s), HealthState::ok);
}

}  // namespace
}  // namespace moex::net
