// Tests cancelled requests, stalled and failing experts, and the end of the engine, through the
// engine's interface.
#include "tests/hub/engine/engine_stage.h"

namespace moex {
namespace {

TEST_F(EngineTest, CancelEndsAStalledStepAndOthersContinue) {
    start({.sequences_max = 2});
    const auto request = greedy(test::random_tokens(4, 256, 2), 30);
    const Outcome alone = solo(request);
    experts_.stall(true);
    auto a = submit(greedy(test::random_tokens(40, 256, 1), 30));
    auto b = submit(request);

    // this request waits for a free sequence slot
    auto c = submit(greedy(test::random_tokens(5, 256, 4), 3));
    experts_.wait_for_stall();
    engine_->cancel(a.id);
    EXPECT_EQ(get(a).end.reason, FinishReason::cancelled);  // ends although the experts still stall

    experts_.wait_for_stall();
    engine_->cancel(b.id);
    EXPECT_EQ(get(b).end.reason, FinishReason::cancelled);

    auto again = submit(request);
    experts_.stall(false);
    const Outcome outcome = get(again);
    EXPECT_EQ(outcome.end.reason, FinishReason::length);
    EXPECT_EQ(outcome.ids, alone.ids);
    EXPECT_EQ(get(c).end.reason, FinishReason::length);
    EXPECT_GE(engine_->counters().steps_stopped, 2u);
    EXPECT_EQ(engine_->counters().kv_pages_used, 0u);
}

// The engine calls `rested` again and again while it has no requests.
TEST_F(EngineTest, EngineWithoutWorkRestsAgainAndAgain) {
    std::promise<void> twice;
    start({.rested =
               [&, count = 0]() mutable {
                   if (++count == 2) twice.set_value();
               },
           .rest_every = 1ms});
    twice.get_future().wait();
    auto one = submit(greedy(test::random_tokens(4, 256, 2), 3));
    EXPECT_EQ(get(one).ids.size(), 3u);
}

// A client that endlessly submits and cancels requests delays a long step of another client, but
// cannot prevent it.
TEST_F(EngineTest, CancelsWithoutEndDoNotStarveALongStep) {
    start({.sequences_max = 2});
    const auto request = greedy(test::random_tokens(4, 256, 2), 2);
    const Outcome alone = solo(request);
    // Delay each of the three layers by 150 ms, much longer than `patience_min`.
    experts_.delay(150ms);
    auto victim = submit(request);
    std::uint64_t cancels = 0;

    while (victim.outcome.wait_for(0s) != std::future_status::ready) {
        auto nuisance = submit(greedy(test::random_tokens(4, 256, 3), 30));
        do experts_.wait_for_round();
        while (engine_->counters().running < 2 &&
               victim.outcome.wait_for(0s) != std::future_status::ready);
        engine_->cancel(nuisance.id);
        get(nuisance);
        ++cancels;
    }
    EXPECT_EQ(get(victim).ids, alone.ids);
    EXPECT_GE(engine_->counters().steps_stopped, 2u);
    EXPECT_LT(cancels, 100u);
}

TEST_F(EngineTest, StepWithTooLargePartsIsRestarted) {
    start({.sequences_max = 2});
    const auto request = greedy(test::random_tokens(6, 256, 2), 5);
    const Outcome alone = solo(request);
    experts_.fail_next(ErrorCode::num_tokens_range);
    const Outcome outcome = solo(request);
    EXPECT_EQ(outcome.end.reason, FinishReason::length);
    EXPECT_EQ(outcome.ids, alone.ids);
}

TEST_F(EngineTest, StoppingEngineDoesNotWaitForAStalledStep) {
    start({});
    experts_.stall(true);
    auto pending = submit(greedy(test::random_tokens(4, 256, 1), 30));
    experts_.wait_for_stall();
    engine_.reset();
    EXPECT_EQ(get(pending).end.reason, FinishReason::cancelled);
    experts_.stall(false);
}

TEST_F(EngineTest, FailedRoundEndsOnlyTheSequencesOfItsStep) {
    start({.sequences_max = 2});
    experts_.close();
    auto a = submit(greedy(test::random_tokens(4, 256, 1), 30));
    experts_.wait_for_round();
    auto b = submit(greedy(test::random_tokens(4, 256, 2), 30));
    experts_.fail_next();
    experts_.open();
    const Outcome failed = get(a);
    EXPECT_EQ(failed.end.reason, FinishReason::error);
    EXPECT_EQ(failed.end.error.code, ErrorCode::unavailable);
    EXPECT_NE(failed.end.error.message.find("expert 3"), std::string::npos);
    EXPECT_EQ(get(b).ids.size(), 30u);
    EXPECT_EQ(engine_->counters().kv_pages_used, 0u);
}

TEST_F(EngineTest, DrainRefusesTheNewAndEndsTheOld) {
    start({});
    experts_.close();
    auto pending = submit(greedy(test::random_tokens(4, 256, 1), 25));
    engine_->drain();
    const auto refused = engine_->submit(greedy({1}, 4), {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
    EXPECT_FALSE(engine_->idle());
    experts_.open();
    EXPECT_EQ(get(pending).ids.size(), 25u);
}

TEST_F(EngineTest, StoppingEndsRunningAndWaitingGenerations) {
    start({.sequences_max = 1});
    // if rounds were answered, the first request could end before the engine stops
    experts_.stall(true);
    auto a = submit(greedy(test::random_tokens(4, 256, 1), 200));
    experts_.wait_for_stall();
    auto b = submit(greedy(test::random_tokens(4, 256, 1), 200));
    engine_.reset();
    EXPECT_EQ(get(a).end.reason, FinishReason::cancelled);
    EXPECT_EQ(get(b).end.reason, FinishReason::cancelled);
    experts_.stall(false);
}

}  // namespace
}  // namespace moex
