// Trials decide whether hints pay. The test sets the times of calls.
#include "web-worker/slots/hint_trial.h"

#include <gtest/gtest.h>

#include <functional>

namespace moex {
namespace {

// A worker with calls that arrive at the intervals of `interval_ms`, which may depend on whether
// hints are followed.
class Worker {
  public:
    using IntervalMs = std::function<double(std::uint64_t call, bool follows)>;
    explicit Worker(IntervalMs interval_ms) : interval_ms_(std::move(interval_ms)) {}

    // Simulates `num_calls` calls, and returns the number of calls at which hints were followed.
    std::uint32_t play(std::uint32_t num_calls, bool has_hints = true) {
        std::uint32_t num_followed = 0;
        for (std::uint32_t i = 0; i < num_calls; ++i) {
            if (has_hints) trial_.hinted();
            const bool follows = trial_.follows();
            num_followed += follows;
            now_ms_ += interval_ms_(call_++, follows);
            trial_.called(now_ms_);
        }
        return num_followed;
    }
    void become(IntervalMs interval_ms) { interval_ms_ = std::move(interval_ms); }

  private:
    HintTrial trial_;
    IntervalMs interval_ms_;
    double now_ms_ = 1000;
    std::uint64_t call_ = 0;
};

constexpr std::uint32_t trial_calls = HintTrial::num_stages * HintTrial::stage_calls;
// Returns intervals in which every twelfth call is the end of a token and takes longer.
Worker::IntervalMs intervals(double with_ms, double without_ms) {
    return [=](std::uint64_t call, bool follows) {
        return (follows ? with_ms : without_ms) + (call % 12 == 0 ? 5 : 0);
    };
}

TEST(HintTrialTest, HintsAreFollowedUntilATrialFindsACost) {
    Worker worker(intervals(1.2, 1.0));
    EXPECT_EQ(worker.play(HintTrial::pause_min), HintTrial::pause_min);
    EXPECT_EQ(worker.play(trial_calls), trial_calls / 2);
    EXPECT_EQ(worker.play(HintTrial::pause_min), 0u);

    // After each trial without a change, the next trial follows after a longer pause.
    EXPECT_EQ(worker.play(trial_calls), trial_calls / 2);
    EXPECT_LT(worker.play(20 * HintTrial::pause_max), 20 * HintTrial::pause_max / 20);
}

TEST(HintTrialTest, HintsThatPayAreKept) {
    Worker worker(intervals(1.0, 1.2));
    const std::uint32_t num_calls = 20 * HintTrial::pause_max;
    EXPECT_GT(worker.play(num_calls), num_calls - num_calls / 20);
}

// If calls without hints are much slower, the trial ends after its first timed calls; or after the
// whole stage, if its first calls are as fast as calls with hints.
TEST(HintTrialTest, StageThatCostsMuchEndsATrial) {
    Worker at_once(intervals(1.0, 2.0));
    (void)at_once.play(HintTrial::pause_min);
    constexpr std::uint32_t few = HintTrial::settling_calls + HintTrial::calls_to_despair;
    EXPECT_EQ(at_once.play(trial_calls), trial_calls - few);

    constexpr std::uint64_t later = HintTrial::pause_min + HintTrial::stage_calls + few;
    Worker in_the_end(
        [](std::uint64_t call, bool follows) { return follows || call < later ? 1.0 : 2.0; });
    (void)in_the_end.play(HintTrial::pause_min);
    EXPECT_EQ(in_the_end.play(trial_calls), trial_calls - HintTrial::stage_calls);
}

// Another process pauses one of the first calls without hints. The other calls without hints are
// faster than calls with hints.
TEST(HintTrialTest, PauseOfAnotherProcessEndsNoTrial) {
    constexpr std::uint64_t at = HintTrial::pause_min + HintTrial::stage_calls +
                                 HintTrial::settling_calls + 10;
    Worker worker([](std::uint64_t call, bool follows) {
        return (follows ? 0.6 : 0.5) + (call == at ? 20 : 0);
    });
    (void)worker.play(HintTrial::pause_min + trial_calls);
    EXPECT_EQ(worker.play(100), 0u);
}

TEST(HintTrialTest, SmallDifferenceChangesNothing) {
    Worker worker(intervals(1.01, 1.0));
    (void)worker.play(HintTrial::pause_min + trial_calls);
    EXPECT_EQ(worker.play(1000), 1000u);
}

TEST(HintTrialTest, HintsThatPayAgainAreFollowedAgain) {
    Worker worker(intervals(1.3, 1.0));
    (void)worker.play(HintTrial::pause_min + trial_calls);
    EXPECT_EQ(worker.play(100), 0u);
    worker.become(intervals(1.0, 1.3));
    (void)worker.play(HintTrial::pause_min + trial_calls);
    EXPECT_EQ(worker.play(100), 100u);
}

// Another process uses the machine for one stage: a stage with hints, which makes hints look
// costly, or a stage without hints, which hides their cost.
TEST(HintTrialTest, OneDisturbedStageDecidesNothing) {
    for (const bool cost : {false, true}) {
        const std::uint64_t disturbed = HintTrial::pause_min + (cost ? HintTrial::stage_calls : 0);
        Worker worker([&](std::uint64_t call, bool follows) {
            const double other = call >= disturbed && call < disturbed + HintTrial::stage_calls
                                     ? 0.3
                                     : 0;
            return (follows && cost ? 1.3 : 1.0) + other;
        });
        (void)worker.play(HintTrial::pause_min + trial_calls);
        EXPECT_EQ(worker.play(1000), cost ? 0u : 1000u);
    }
}

TEST(HintTrialTest, NothingIsTriedWithoutHintsNorAtRest) {
    Worker silent(intervals(1.2, 1.0));
    EXPECT_EQ(silent.play(10 * HintTrial::pause_min, false), 10 * HintTrial::pause_min);

    // Calls of users who read between their messages: most calls find a worker at rest.
    Worker resting([](std::uint64_t call, bool follows) {
        return call % 3 == 0 ? (follows ? 1.2 : 1.0) : 10 * HintTrial::rest_ms;
    });
    (void)resting.play(HintTrial::pause_min + trial_calls);
    EXPECT_EQ(resting.play(1000), 1000u);
}

}  // namespace
}  // namespace moex
