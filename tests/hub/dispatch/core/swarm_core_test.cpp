// Tests whole rounds: which worker answers when other workers are slow, gone or busy.
#include "tests/hub/dispatch/swarm_stage.h"

namespace moex::sim {
namespace {

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

    // The workers are used round-robin: each of them answers five groups.
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

TEST(SwarmCoreTest, CoveredAttemptIsCancelledDuringTheRound) {
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
    options.latency = 20ms;  // with this latency the CANCEL arrives after the computation
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

// The thread of a connection reads frames while the strand sends others. An answer that was read
// before its request was sent is a guess, and ends the connection.
TEST(SwarmCoreTest, AnswerReadBeforeItsRequestEndsTheConnection) {
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
    swarm.stall(stalled);  // the worker reads nothing, so its heartbeats fail as well
    for (int i = 0; i < 20; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        expect_exact(swarm, round);
    }
    EXPECT_EQ(swarm.core().counters().timeouts, 3u);
    EXPECT_EQ(swarm.core().worker(stalled)->state, WorkerState::unhealthy);

    swarm.stall(stalled, false);
    swarm.run_for(6s);  // the ejection ends: the worker is sent a copy of another worker's call
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
    // a worker stays active, because BUSY is no failure
    EXPECT_EQ(swarm.core().worker(busy)->state, WorkerState::active);
    EXPECT_EQ(swarm.core().counters().calls_local, 0u);
}

// A BUSY reply does not count as an attempt: after any number of BUSY the worker still computes the
// call.
TEST(SwarmCoreTest, BusyWorkerIsRetriedBeforeTheLocalBackend) {
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

// In an earlier version a newcomer got all groups, 60 of 60, until its recent work equalled that of
// the other workers.
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

TEST(SwarmCoreTest, DeterministicAnswersAreEqualFromOneWorkerThreeWorkersHedgedAndLocal) {
    std::vector<std::vector<float>> answers;
    for (const auto& [num_workers, hedge] :
         std::vector<std::pair<std::uint32_t, std::uint32_t>>{{1, 1}, {3, 1}, {3, 2}, {0, 1}}) {
        SimOptions options = two_workers();
        options.num_workers = num_workers;
        // with three workers, no worker has memory for all units
        options.budget_experts = num_workers == 3 ? 40 : 1000;
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
