// Rounds as stories: who answers when workers are slow, gone, busy, broken or lying.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

SimOptions two_workers() {
    SimOptions options{.num_workers = 2, .seed = 7, .log = true};
    options.swarm.rounding.deterministic = true;
    return options;
}

void expect_exact(const SimSwarm& swarm, RoundId round) {
    const RoundOutcome& outcome = swarm.outcome(round);
    ASSERT_TRUE(outcome.answer.has_value()) << "round " << round << " is open";
    ASSERT_TRUE(outcome.answer->ok()) << outcome.answer->error().message;
    EXPECT_EQ(outcome.y, outcome.want);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

TEST(SwarmCoreTest, OneFrameEachWayPerRoundWhenOneWorkerHoldsAll) {
    SimSwarm swarm(two_workers());
    ASSERT_TRUE(swarm.run_until_ready());
    for (int i = 0; i < 10; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
        EXPECT_EQ(swarm.answered_by(round).size(), 1u);
    }
    EXPECT_EQ(swarm.core().counters().groups_sent, 10u);
    EXPECT_EQ(swarm.core().counters().calls_remote, 40u);
    EXPECT_EQ(swarm.core().counters().calls_local, 0u);

    // they take turns
    for (const WorkerView& worker : swarm.core().workers()) EXPECT_EQ(worker.groups_answered, 5u);
}

TEST(SwarmCoreTest, SecondWorkerAnswersWhenTheFirstIsStalledAndHedgeTwoCostsNoTimeout) {
    SimOptions options = two_workers();
    options.swarm.hedge = {.mode = HedgeMode::fixed, .copies = 2};
    options.swarm.local_fallback = false;
    options.log = true;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    const auto workers = swarm.workers_alive();
    swarm.stall_compute(workers[0]);
    for (int i = 0; i < 100; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
        EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{workers[1]});
    }
    EXPECT_EQ(swarm.core().counters().timeouts, 0u);
    EXPECT_GT(swarm.core().counters().hedges_sent, 0u);
    EXPECT_GT(swarm.core().counters().cancels, 0u);

    std::uint64_t told = 0;
    for (const Bytes& frame : swarm.frames_to(workers[0]))
        told += decode_frame_header(frame)->type == FrameType::cancel;
    EXPECT_EQ(told, swarm.core().counters().cancels);
}

TEST(SwarmCoreTest, WhatOthersHaveAnsweredIsCancelledWhileTheRoundGoesOn) {
    SimOptions options{.num_workers = 0, .seed = 3};
    options.swarm.hedge = {.mode = HedgeMode::fixed, .copies = 2};
    options.swarm.replicas = 4;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    for (int i = 0; i < 4; ++i) swarm.join(Peer::ours, text("10.0.", i, ".1"));
    ASSERT_TRUE(swarm.run_until_ready());
    for (const WorkerId worker : swarm.workers_alive())
        swarm.slow_down(worker, Duration(5ms * (worker * worker)));

    const RoundId round = swarm.submit({.num_tokens = 64});
    std::uint64_t cancels_before_its_end = 0;
    while (swarm.core().num_rounds_open() > 0) {
        cancels_before_its_end = swarm.core().counters().cancels;
        swarm.run_for(Duration(100us));
    }
    EXPECT_LT(swarm.outcome(round).error_max, 4e-3);
    EXPECT_GT(cancels_before_its_end, 0u);
}

TEST(SwarmCoreTest, LateAnswersAreCountedAndDropped) {
    SimOptions options = two_workers();
    options.swarm.hedge = {.mode = HedgeMode::fixed, .copies = 2};
    options.compute = 10ms;
    options.latency = 20ms;  // the CANCEL comes after the work is done
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.slow_down(swarm.workers_alive()[0], 15ms);
    const RoundId round = swarm.submit();
    ASSERT_TRUE(swarm.run_until_idle());

    expect_exact(swarm, round);
    EXPECT_EQ(swarm.core().counters().late, 1u);
    EXPECT_EQ(swarm.outcome(round).times_done, 1u);
    EXPECT_EQ(swarm.workers_alive().size(), 2u);
}

// Connections read while the strand asks: a guess that was read before its question is no answer.
TEST(SwarmCoreTest, AnAnswerThatWasReadBeforeItsQuestionEndsItsConnection) {
    SimOptions options{.num_workers = 1, .seed = 3};
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());
    SwarmCore& core = swarm.core();
    const WorkerId worker = swarm.workers_alive()[0];
    const WireLimits& limits = core.options().limits;
    GroupResult guess{.sequence_id = core.options().first_sequence_id,
                      .shape = {.num_tokens = 1,
                                .hidden_dim = static_cast<std::uint16_t>(limits.hidden_size),
                                .num_pairs = 4,
                                .num_experts = 4}};
    guess.y.resize(limits.hidden_size);
    std::optional<WorkerAnswer> read = core.answer_reader(worker).read(
        encode_group_result(guess, false));
    ASSERT_TRUE(read);

    swarm.submit();
    ASSERT_EQ(core.in_flight(worker), 1u);
    EXPECT_TRUE(core.answer_reader(worker).read(encode_group_result(guess, false))->asked_for);
    std::vector<SwarmAction> actions;
    core.on_answer(swarm.now(), worker, *std::move(read), actions);
    const bool is_closed = std::ranges::any_of(actions, [&](const SwarmAction& action) {
        const auto* close = std::get_if<CloseWorker>(&action);
        return close != nullptr && close->code == CloseCode::protocol_error;
    });
    EXPECT_TRUE(is_closed);
    EXPECT_EQ(core.counters().bad_frames, 1u);
}

TEST(SwarmCoreTest, DisconnectMidRoundIsRedispatchedAtOnce) {
    SimSwarm swarm(two_workers());
    ASSERT_TRUE(swarm.run_until_ready());
    const RoundId round = swarm.submit();
    swarm.run_for(1ms);
    const auto views = swarm.core().workers();
    const WorkerId asked = views[0].in_flight > 0 ? views[0].id : views[1].id;
    swarm.leave(asked);
    ASSERT_TRUE(swarm.run_until_idle());

    expect_exact(swarm, round);
    ASSERT_EQ(swarm.answered_by(round).size(), 1u);
    EXPECT_NE(swarm.answered_by(round)[0], asked);
    EXPECT_EQ(swarm.core().counters().timeouts, 0u);
    EXPECT_GT(swarm.core().counters().redispatched, 0u);
}

TEST(SwarmCoreTest, AWorkerThatLostItsWeightsIsGivenThemAnew) {
    SimOptions options = two_workers();
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    const auto workers = swarm.workers_alive();
    const std::uint32_t held = swarm.core().worker(workers[0])->units_ready;
    swarm.forget_weights(workers[0]);
    for (int i = 0; i < 8; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
    }
    swarm.run_for(1s);
    EXPECT_GT(swarm.core().worker(workers[0])->errors, 0u);
    EXPECT_EQ(swarm.core().worker(workers[0])->units_ready, held)
        << "what was asked and not there is ready again";
    EXPECT_EQ(swarm.core().counters().timeouts, 0u);
}

TEST(SwarmCoreTest, ATimeoutGoesToTheOtherReplicaAndThreeInARowMakeUnhealthy) {
    SimOptions options = two_workers();
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    const WorkerId stalled = swarm.workers_alive()[0];
    swarm.stall(stalled);  // it reads nothing, so its heartbeats fail as well
    for (int i = 0; i < 20; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
    }
    EXPECT_EQ(swarm.core().counters().timeouts, 3u);
    EXPECT_EQ(swarm.core().worker(stalled)->state, WorkerState::unhealthy);

    swarm.stall(stalled, false);
    swarm.run_for(6s);  // its time is over: it gets a copy of what the other computes
    swarm.submit();
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.core().worker(stalled)->state, WorkerState::active);
}

TEST(SwarmCoreTest, MissedHeartbeatsMakeUnhealthyAndThenEndTheConnection) {
    SimSwarm swarm(two_workers());
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId silent = swarm.workers_alive()[0];
    swarm.stall(silent);
    swarm.run_for(9s);
    EXPECT_EQ(swarm.core().worker(silent)->state, WorkerState::unhealthy);
    swarm.run_for(60s);
    EXPECT_EQ(swarm.closed_with(silent), CloseCode::going_away);
}

TEST(SwarmCoreTest, ABusyWorkerIsSparedForAsLongAsItAsked) {
    SimSwarm swarm(two_workers());
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId busy = swarm.workers_alive()[0];
    swarm.answer_busy(busy, 2000);
    for (int i = 0; i < 10; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
        EXPECT_NE(swarm.answered_by(round), std::vector<WorkerId>{busy});
    }
    EXPECT_EQ(swarm.core().worker(busy)->busy, 1u);
    EXPECT_EQ(swarm.core().worker(busy)->state, WorkerState::active);  // no failure of its own
    EXPECT_EQ(swarm.core().counters().calls_local, 0u);
}

// BUSY is no attempt: however often it was said, the worker computes it in the end.
TEST(SwarmCoreTest, WhoSaidBusyThreeTimesIsAskedAgainBeforeTheLocalBackend) {
    SimOptions options{.num_workers = 1, .seed = 3, .latency = Duration(100us)};
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId busy = swarm.workers_alive()[0];
    swarm.answer_busy(busy, 3);
    const RoundId round = swarm.submit();
    while (swarm.core().worker(busy)->busy < 3 && swarm.core().num_rounds_open() > 0)
        swarm.run_for(Duration(100us));
    swarm.answer_busy(busy, 0);
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{busy});
    EXPECT_EQ(swarm.core().worker(busy)->busy, 3u);
}

TEST(SwarmCoreTest, AfterThreeTriesTheLocalBackendComputesIt) {
    SimOptions options{.num_workers = 0, .seed = 3};
    options.swarm.replicas = 5;
    SimSwarm swarm(options);
    for (int i = 0; i < 5; ++i) swarm.join(Peer::ours, text("10.0.", i, ".1"));
    ASSERT_TRUE(swarm.run_until_ready());
    for (const WorkerId worker : swarm.workers_alive()) swarm.answer_error(worker, "device_lost");
    const RoundId round = swarm.submit();
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{0});
    EXPECT_EQ(swarm.core().counters().groups_sent, 3u);
}

// It got all, 60 of 60 groups, until it had done as much as the others in their last seconds.
TEST(SwarmCoreTest, ANewcomerGetsItsShareAndNoMore) {
    SimOptions options{.num_workers = 2, .seed = 3};
    options.swarm.replicas = 3;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());
    const auto rounds = [&](std::uint32_t count) {
        for (std::uint32_t i = 0; i < count; ++i) {
            swarm.submit({.layer = i % 3});
            ASSERT_TRUE(swarm.run_until_idle());
        }
    };
    rounds(150);
    const WorkerId newcomer = swarm.join(Peer::ours, "10.0.9.1");
    ASSERT_TRUE(swarm.run_until_ready());
    rounds(60);
    EXPECT_GE(swarm.core().worker(newcomer)->groups_sent, 10u);
    EXPECT_LE(swarm.core().worker(newcomer)->groups_sent, 35u);
}

TEST(SwarmCoreTest, AnErrorFailsItsAttemptOnly) {
    SimSwarm swarm(two_workers());
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId broken = swarm.workers_alive()[0];
    swarm.answer_error(broken, "device_lost");
    for (int i = 0; i < 10; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
    }
    EXPECT_EQ(swarm.core().counters().timeouts, 0u);
    EXPECT_EQ(swarm.workers_alive().size(), 2u);
    EXPECT_EQ(swarm.core().worker(broken)->state, WorkerState::unhealthy);
    EXPECT_EQ(swarm.core().worker(broken)->errors, 3u);
}

TEST(SwarmCoreTest, AFatalErrorEndsTheConnection) {
    SimSwarm swarm(two_workers());
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId broken = swarm.workers_alive()[0];
    swarm.answer_error(broken, "internal", true);
    for (int i = 0; i < 3; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
    }
    EXPECT_TRUE(swarm.closed_with(broken).has_value());
}

// Every round once failed three times there, and a worker
// of little memory was unhealthy from its first prefill on.
TEST(SwarmCoreTest, AWorkerThatTakesSmallGroupsGetsSmallGroups) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    const WorkerId small = swarm.workers_alive()[0];
    swarm.take_at_most(small, 16);
    for (int i = 0; i < 4; ++i) {
        const RoundId round = swarm.submit({.num_tokens = 20});  // 80 pairs
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
        EXPECT_LE(swarm.core().worker(small)->errors, 1u);  // 80: after that it is known
    }
    EXPECT_EQ(swarm.core().worker(small)->state, WorkerState::active);
}

TEST(SwarmCoreTest, WhatAWorkerCannotTakeInSmallerGroupsGoesElsewhere) {
    SimOptions options = two_workers();
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    const WorkerId small = swarm.workers_alive()[0], large = swarm.workers_alive()[1];
    swarm.take_at_most(small, 1);
    for (int i = 0; i < 4; ++i) {
        // ten rows of the same four experts: calls of ten pairs
        RoundSpec spec{.num_tokens = 10};
        for (int row = 0; row < 10; ++row)
            spec.expert_ids.insert(spec.expert_ids.end(), {1, 5, 9, 13});
        const RoundId round = swarm.submit(std::move(spec));
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
        EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{large});
    }
    EXPECT_LE(swarm.core().worker(small)->errors, 2u);  // two were under way at once
    EXPECT_EQ(swarm.core().worker(small)->state, WorkerState::active);
}

TEST(SwarmCoreTest, ACallThatNobodyTakesAtOnceIsCutFinerByTheNextRound) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.take_at_most(swarm.workers_alive()[0], 20);
    const auto ask = [&] {
        RoundSpec spec{.num_tokens = 40};  // calls of forty pairs
        for (int row = 0; row < 40; ++row)
            spec.expert_ids.insert(spec.expert_ids.end(), {1, 5, 9, 13});
        return swarm.submit(std::move(spec));
    };
    const TimePoint start = swarm.now();
    const RoundId first = ask();
    ASSERT_TRUE(swarm.run_until_idle());
    ASSERT_FALSE(swarm.outcome(first).answer->ok());
    EXPECT_EQ(swarm.outcome(first).answer->error().code, ErrorCode::num_tokens_range);
    EXPECT_LT(to_ms(swarm.now() - start), 500);

    for (int i = 0; i < 3; ++i) {
        const RoundId again = ask();
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, again);
    }
}

class OverflowTest : public testing::TestWithParam<Peer> {};
TEST_P(OverflowTest, AnAnswerBeyondF16IsAskedForInBf16AndIsNoLie) {
    SimOptions options{.num_workers = 0, .seed = 5, .log = true};
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const WorkerId worker = swarm.join(GetParam());
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.overflow_f16(worker);
    if (GetParam() == Peer::published) {
        // It knows f16 alone: nobody can answer, but it is no liar, and its other answers count.
        swarm.submit();
        swarm.run_for(2s);
        EXPECT_EQ(swarm.core().counters().bad_answers, 0u);
        EXPECT_FALSE(swarm.closed_with(worker).has_value());
        return;
    }

    for (int i = 0; i < 6; ++i) {
        const RoundId round = swarm.submit({.num_tokens = 3});
        ASSERT_TRUE(swarm.run_until_idle());
        ASSERT_TRUE(swarm.outcome(round).answer->ok())
            << swarm.outcome(round).answer->error().message;
        EXPECT_LE(swarm.outcome(round).error_max, 0.02);
        EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{worker});
    }
    EXPECT_EQ(swarm.core().worker(worker)->state, WorkerState::active);
    EXPECT_EQ(swarm.core().counters().bad_answers, 0u);
}
INSTANTIATE_TEST_SUITE_P(BothKinds, OverflowTest, testing::Values(Peer::ours, Peer::published));

class LiarTest : public testing::TestWithParam<Lie> {};
TEST_P(LiarTest, IsRemovedAfterThreeBadAnswersAndNoneOfThemIsUsed) {
    SimSwarm swarm(two_workers());
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId liar = swarm.workers_alive()[0];
    swarm.lie(liar, GetParam());
    for (int i = 0; i < 40; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
        swarm.run_for(300ms);
    }
    EXPECT_EQ(swarm.core().counters().bad_answers, 3u);
    EXPECT_EQ(swarm.core().counters().removed, 1u);
    EXPECT_EQ(swarm.closed_with(liar), CloseCode::policy);
    EXPECT_EQ(swarm.core().counters().calls_local, 0u);
}
INSTANTIATE_TEST_SUITE_P(EveryLie, LiarTest,
                         testing::Values(Lie::shape, Lie::not_finite, Lie::huge));

TEST(SwarmCoreTest, TheLocalBackendAnswersWhenNobodyElseCan) {
    SimOptions options = two_workers();
    options.num_workers = 0;
    SimSwarm swarm(options);
    const RoundId round = swarm.submit({.num_tokens = 5});
    ASSERT_TRUE(swarm.run_until_idle());
    expect_exact(swarm, round);
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{0});
    EXPECT_EQ(swarm.core().counters().calls_remote, 0u);
}

TEST(SwarmCoreTest, WithoutLocalWeightsARoundWaitsForAWorkerToJoin) {
    SimOptions options = two_workers();
    options.num_workers = 0;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const RoundId round = swarm.submit();
    swarm.run_for(1s);
    EXPECT_FALSE(swarm.outcome(round).answer.has_value());

    const WorkerId saviour = swarm.join();
    ASSERT_TRUE(swarm.run_until_idle());
    expect_exact(swarm, round);
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{saviour});
}

TEST(SwarmCoreTest, WithoutLocalWeightsAndHoldersARoundEndsUnavailableAfterAShortWait) {
    SimOptions options = two_workers();
    options.num_workers = 0;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const TimePoint start = swarm.now();
    const RoundId round = swarm.submit();

    while (!swarm.outcome(round).answer) swarm.run_for(10ms);
    EXPECT_NEAR(to_ms(swarm.now() - start), 2000, 20);
    ASSERT_FALSE(swarm.outcome(round).answer->ok());
    EXPECT_EQ(swarm.outcome(round).answer->error().code, ErrorCode::unavailable);
    EXPECT_NE(swarm.outcome(round).answer->error().message.find("no worker holds expert"),
              std::string::npos)
        << swarm.outcome(round).answer->error().message;
}

TEST(SwarmCoreTest, WhenTheLastHolderLeavesInMidRoundTheRoundWaitsForItsReturn) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    const WorkerId worker = swarm.workers_alive().front();
    swarm.stall_compute(worker);
    const RoundId round = swarm.submit();
    swarm.run_for(100ms);
    const TimePoint left = swarm.now();
    swarm.leave(worker);

    while (!swarm.outcome(round).answer) swarm.run_for(10ms);
    EXPECT_NEAR(to_ms(swarm.now() - left), 8000, 100);
    EXPECT_FALSE(swarm.outcome(round).answer->ok());
}

// A tab whose GPU was reset needs a few seconds; the chat that was waiting for it went on after
// two and ended with "no worker holds expert 0".
TEST(SwarmCoreTest, ASoleHolderThatComesBackAfterFiveSecondsAnswersTheRound) {
    SimOptions options = two_workers();
    options.num_workers = 0;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const WorkerId first = swarm.join(Peer::ours, "10.0.0.1", "the tab");
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.leave(first);
    swarm.run_for(1s);
    const RoundId round = swarm.submit();
    swarm.run_for(5s);
    EXPECT_FALSE(swarm.outcome(round).answer.has_value());

    const WorkerId again = swarm.join(Peer::ours, "10.0.0.1", "the tab");
    ASSERT_TRUE(swarm.run_until_idle());
    expect_exact(swarm, round);
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{again});
}

TEST(SwarmCoreTest, AHolderOfLongAgoIsNotWaitedFor) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.leave(swarm.workers_alive().front());
    swarm.run_for(61s);
    const TimePoint start = swarm.now();
    const RoundId round = swarm.submit();
    while (!swarm.outcome(round).answer) swarm.run_for(10ms);
    EXPECT_NEAR(to_ms(swarm.now() - start), 2000, 20);
}

TEST(SwarmCoreTest, AHolderThatCameAndLeftGivesTheNextOneItsTimeAgain) {
    SimOptions options = two_workers();
    options.num_workers = 0;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const RoundId round = swarm.submit();
    swarm.run_for(1700ms);
    const WorkerId worker = swarm.join();
    swarm.stall_compute(worker);
    swarm.run_for(350ms);
    ASSERT_FALSE(swarm.outcome(round).answer.has_value());

    const TimePoint left = swarm.now();
    swarm.leave(worker);
    // eight seconds from here, but the whole round no longer than ten
    while (!swarm.outcome(round).answer) swarm.run_for(10ms);
    EXPECT_NEAR(to_ms(swarm.now() - left), 7950, 100);
}

// Frames that nobody asked for may not be long; an answer may, for as long as it may still come.
TEST(SwarmCoreTest, AWorkersFrameLimitFollowsWhatItWasAsked) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.hidden_size = 512;
    options.swarm.timeout_max = 30s;
    SimSwarm swarm(options);
    const WorkerId worker = swarm.workers_alive().front();
    ASSERT_TRUE(swarm.run_until_ready());

    const std::uint64_t control = swarm.frame_limit(worker);
    EXPECT_GE(control, 65536u);
    EXPECT_LT(control, 70000u);

    swarm.slow_down(worker, 10s);
    const RoundId large = swarm.submit({.num_tokens = 64});  // 64 x 4 pairs of 512 halves
    const std::uint64_t answer = 64 * 4 * 512 * 2;
    EXPECT_GE(swarm.frame_limit(worker), answer);
    EXPECT_LT(swarm.frame_limit(worker), answer * 3 / 2);

    swarm.run_for(1s);
    swarm.cancel(large);
    swarm.run_for(1s);
    EXPECT_GE(swarm.frame_limit(worker), answer);  // on its way when the CANCEL came

    swarm.run_for(61s);
    EXPECT_EQ(swarm.frame_limit(worker), control);

    swarm.slow_down(worker, 3ms);
    const RoundId small = swarm.submit({.num_tokens = 1});
    EXPECT_EQ(swarm.frame_limit(worker), control);
    ASSERT_TRUE(swarm.run_until_idle());

    expect_exact(swarm, small);
    const RoundId again = swarm.submit({.num_tokens = 64});
    ASSERT_TRUE(swarm.run_until_idle());

    expect_exact(swarm, again);
    EXPECT_EQ(swarm.frame_limit(worker), control);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

TEST(SwarmCoreTest, AnAnswerAfterItsTimeoutIsWithinTheLimit) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.hidden_size = 512;
    SimSwarm swarm(options);
    const WorkerId worker = swarm.workers_alive().front();
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.slow_down(worker, 600ms);  // beyond the timeout of 500 ms: no CANCEL stops it in time
    const RoundId round = swarm.submit({.num_tokens = 64});
    ASSERT_TRUE(swarm.run_until_idle());

    swarm.run_for(5s);
    expect_exact(swarm, round);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

TEST(SwarmCoreTest, AHolderThatAnswersNothingIsWorthTheWholeDeadline) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.stall_compute(swarm.workers_alive().front());
    const TimePoint start = swarm.now();
    const RoundId round = swarm.submit();
    while (!swarm.outcome(round).answer) swarm.run_for(10ms);
    EXPECT_NEAR(to_ms(swarm.now() - start), 10000, 20);
    ASSERT_FALSE(swarm.outcome(round).answer->ok());
    EXPECT_EQ(swarm.outcome(round).answer->error().code, ErrorCode::unavailable);
}

TEST(SwarmCoreTest, AFullQueueWaitsShortlyThenGoesLocal) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.compute = 2s;
    options.swarm.timeout_max = 5s;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    const RoundId first = swarm.submit(), second = swarm.submit(), third = swarm.submit();
    EXPECT_EQ(swarm.core().counters().in_flight, 2u);
    EXPECT_EQ(swarm.core().counters().rounds_waiting, 1u);

    swarm.run_for(100ms);
    expect_exact(swarm, third);
    EXPECT_EQ(swarm.answered_by(third), std::vector<WorkerId>{0});
    ASSERT_TRUE(swarm.run_until_idle());

    expect_exact(swarm, first);
    expect_exact(swarm, second);
    EXPECT_EQ(swarm.frames_at_once_max(), 2u);
}

TEST(SwarmCoreTest, GroupsAreSplitByTheWireLimits) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.swarm.limits.num_tokens_max = 4;
    options.swarm.limits.num_pairs_max = 6;
    options.swarm.queue_depth = 100;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    const RoundId round = swarm.submit({.num_tokens = 11});
    ASSERT_TRUE(swarm.run_until_idle());
    expect_exact(swarm, round);
    EXPECT_GE(swarm.core().counters().groups_sent, 44u / 6);

    // the worker's decoder holds the limits against every frame
    EXPECT_EQ(swarm.core().counters().bad_frames, 0u);
    EXPECT_EQ(swarm.workers_alive().size(), 1u);
    EXPECT_EQ(swarm.core().counters().calls, swarm.core().counters().calls_remote);
}

TEST(SwarmCoreTest, DeterministicAnswersAreEqualFromOneWorkerThreeWorkersHedgedAndLocal) {
    std::vector<std::vector<float>> answers;
    for (const auto& [num_workers, hedge] :
         std::vector<std::pair<std::uint32_t, std::uint32_t>>{{1, 1}, {3, 1}, {3, 2}, {0, 1}}) {
        SimOptions options = two_workers();
        options.num_workers = num_workers;
        options.budget_experts = num_workers == 3 ? 40 : 1000;  // three must share the work
        options.swarm.hedge = {.mode = HedgeMode::fixed, .copies = hedge};
        SimSwarm swarm(options);
        swarm.run_until_ready();
        std::vector<std::uint16_t> ids;
        for (std::uint16_t i = 0; i < 36; ++i)
            ids.push_back(static_cast<std::uint16_t>((i * 5) % 16));
        for (std::size_t i = 0; i < ids.size(); i += 4)
            std::sort(ids.begin() + static_cast<std::ptrdiff_t>(i),
                      ids.begin() + static_cast<std::ptrdiff_t>(i + 4));
        const RoundId round = swarm.submit({.layer = 1, .num_tokens = 9, .expert_ids = ids});
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
        answers.push_back(swarm.outcome(round).want);
    }
}

TEST(SwarmCoreTest, SummedAnswersOfSeveralWorkersAddUp) {
    SimOptions options = two_workers();
    options.num_workers = 4;
    options.budget_experts = 30;
    options.swarm.rounding.deterministic = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    for (int i = 0; i < 30; ++i) {
        const RoundId round = swarm.submit(
            {.layer = static_cast<std::uint32_t>(i % 3), .num_tokens = 8});
        ASSERT_TRUE(swarm.run_until_idle());
        EXPECT_LT(swarm.outcome(round).error_max, 4e-3);
    }
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

TEST(SwarmCoreTest, ACancelledRoundIsNeverAnswered) {
    SimSwarm swarm(two_workers());
    ASSERT_TRUE(swarm.run_until_ready());
    const RoundId round = swarm.submit();
    swarm.cancel(round);
    ASSERT_TRUE(swarm.run_until_idle());
    swarm.run_for(5s);
    EXPECT_EQ(swarm.outcome(round).times_done, 0u);
    EXPECT_EQ(swarm.core().counters().cancels, 1u);
    EXPECT_TRUE(swarm.violations().empty());
}

TEST(SwarmCoreTest, ReplicasMoveToANewWorkerWithoutLosingTheLastReadyCopy) {
    SimOptions options = two_workers();
    options.num_workers = 1;
    options.swarm.replicas = 1;
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.join(Peer::ours, "10.9.0.1");
    for (int i = 0; i < 400; ++i) {
        swarm.run_for(1ms);
        EXPECT_GE(swarm.core().coverage().replicas_min, 1u);
    }
    swarm.run_for(2s);

    for (const WorkerView& worker : swarm.core().workers()) EXPECT_NEAR(worker.units_ready, 24, 3);
    const RoundId round = swarm.submit({.num_tokens = 4});
    ASSERT_TRUE(swarm.run_until_idle());
    expect_exact(swarm, round);
}

}  // namespace
}  // namespace moex::sim
