// Tests the health state machine by itself and in a swarm: which workers get calls, and how much a
// sick worker delays the rounds.
#include "hub/dispatch/trust/worker_health.h"

#include <gtest/gtest.h>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

constexpr HealthOptions health_options{};

struct HealthTest : testing::Test {
    HealthTest() {
        health.on(HealthEvent::welcome, now);
        health.on(HealthEvent::loaded, now);
    }
    void fail(int times) {
        for (int i = 0; i < times; ++i) health.failed(now, true, health_options);
    }
    TimePoint now{100s};
    WorkerHealth health;
};

TEST_F(HealthTest, ThreeFailuresInARowEjectAndAnAnswerBetweenThemForgives) {
    fail(2);
    EXPECT_EQ(health.state(), Health::suspect);
    EXPECT_TRUE(health.serves());
    health.on(HealthEvent::answer, now);
    EXPECT_EQ(health.state(), Health::healthy);
    fail(2);
    EXPECT_EQ(health.state(), Health::suspect);
    fail(1);
    EXPECT_EQ(health.state(), Health::ejected);
    EXPECT_FALSE(health.serves());
}

TEST_F(HealthTest, EachEjectionIsFiveSecondsLongerThanTheLastUpToFiveMinutes) {
    for (int ejection = 1; ejection <= 100; ++ejection) {
        fail(ejection == 1 ? 3 : 1);  // a half-open worker is ejected after one failure
        ASSERT_EQ(health.state(), Health::ejected);
        EXPECT_EQ(health.ejected_until() - now, std::min<Duration>(5s * ejection, 5min));
        now = health.ejected_until();
        ASSERT_TRUE(health.on(HealthEvent::time_over, now));
        ASSERT_EQ(health.state(), Health::probing);
    }
}

TEST_F(HealthTest, OneFailureWhileProbingIsEnoughAlsoWhenItsHeartbeatsWereFine) {
    fail(3);
    now = health.ejected_until();
    health.on(HealthEvent::echo, now);
    health.on(HealthEvent::time_over, now);
    ASSERT_EQ(health.state(), Health::probing);
    fail(1);
    EXPECT_EQ(health.state(), Health::ejected);
    EXPECT_EQ(health.ejections(), 2u);
}

TEST_F(HealthTest, AMinuteOfHealthForgivesOneEjection) {
    fail(3);
    for (int again = 0; again < 2; ++again) {
        now = health.ejected_until();
        health.on(HealthEvent::time_over, now);
        fail(1);
    }
    EXPECT_EQ(health.ejections(), 3u);
    now = health.ejected_until();
    health.on(HealthEvent::time_over, now);
    health.on(HealthEvent::answer, now);
    now += 2min;
    fail(3);
    EXPECT_EQ(health.ejections(), 2u);
}

TEST_F(HealthTest, UnejectableWorkerStaysSuspect) {
    for (int i = 0; i < 10; ++i) health.failed(now, false, health_options);
    EXPECT_EQ(health.state(), Health::suspect);
}

TEST_F(HealthTest, SilenceEndsWithAnEchoAndDrainEndsEverything) {
    for (const HealthEvent event : {HealthEvent::answer, HealthEvent::failure, HealthEvent::loaded,
                                    HealthEvent::time_over, HealthEvent::welcome}) {
        EXPECT_EQ(next_health(Health::silent, event), Health::silent);
        EXPECT_EQ(next_health(Health::draining, event), Health::draining);
    }
    EXPECT_EQ(next_health(Health::silent, HealthEvent::echo), Health::suspect);
    for (const Health state : {Health::connecting, Health::loading, Health::healthy,
                               Health::suspect, Health::silent, Health::ejected, Health::probing})
        EXPECT_EQ(next_health(state, HealthEvent::drain), Health::draining) << health_name(state);
}

SimOptions four_workers(bool local_fallback) {
    SimOptions swarm{.num_workers = 0, .seed = 7};
    swarm.swarm.local_fallback = local_fallback;
    return swarm;
}

void join_four(SimSwarm& swarm) {
    for (int i = 0; i < 4; ++i) swarm.join(Peer::ours, text("10.0.", i, ".1"));
    ASSERT_TRUE(swarm.run_until_ready());
}

std::uint64_t rounds_for(SimSwarm& swarm, Duration time) {
    std::uint64_t done = 0;
    for (const TimePoint until = swarm.now() + time; swarm.now() < until; ++done) {
        const RoundId round = swarm.submit({.layer = static_cast<std::uint32_t>(done % 3)});
        EXPECT_TRUE(swarm.run_until_idle());
        EXPECT_TRUE(swarm.outcome(round).answer && swarm.outcome(round).answer->ok());
    }
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
    return done;
}

// The worker echoes heartbeats but answers no call. In an earlier version it got calls again two
// seconds after every third failure, without end: 93 timeouts a minute.
TEST(WorkerHealthStory, AHungGpuWithGoodHeartbeatsIsAskedLessAndLess) {
    SimSwarm swarm(four_workers(false));
    join_four(swarm);
    const WorkerId hung = swarm.workers_alive().front();
    swarm.stall_compute(hung);

    rounds_for(swarm, 10s);
    const std::uint64_t timeouts = swarm.core().counters().timeouts;
    EXPECT_LE(timeouts, 3u);
    EXPECT_EQ(swarm.core().worker(hung)->state, WorkerState::unhealthy);

    rounds_for(swarm, 60s);
    EXPECT_EQ(swarm.core().counters().timeouts, timeouts) << "a probe delays no round";
    EXPECT_GE(swarm.core().worker(hung)->ejections, 3u);
    EXPECT_LE(swarm.core().worker(hung)->ejections, 6u);

    swarm.stall_compute(hung, false);
    rounds_for(swarm, 40s);
    EXPECT_EQ(swarm.core().worker(hung)->health, Health::healthy);
}

// An earlier version never demoted a worker that always reported BUSY, and every round tried it
// first.
TEST(WorkerHealthStory, AlwaysBusyWorkerIsEjected) {
    SimSwarm swarm(four_workers(true));
    join_four(swarm);
    const WorkerId busy = swarm.workers_alive().front();
    swarm.answer_busy(busy, 1);

    rounds_for(swarm, 10s);
    EXPECT_EQ(swarm.core().worker(busy)->state, WorkerState::unhealthy);
    EXPECT_LE(swarm.core().worker(busy)->busy, 12u);
    EXPECT_EQ(swarm.core().counters().calls_local, 0u);

    swarm.answer_busy(busy, 0);
    rounds_for(swarm, 20s);
    EXPECT_EQ(swarm.core().worker(busy)->health, Health::healthy);
}

TEST(WorkerHealthStory, WithoutALocalBackendHalfTheSwarmStaysInUse) {
    SimSwarm swarm(four_workers(false));
    join_four(swarm);
    for (const WorkerId worker : swarm.workers_alive()) swarm.answer_error(worker, "device_lost");
    for (std::uint32_t i = 0; i < 9; ++i) {
        // the rounds use all layers, so that all four workers get calls
        swarm.submit({.layer = i % 3});
        ASSERT_TRUE(swarm.run_until_idle());
    }
    std::size_t asked = 0;
    for (const WorkerView& view : swarm.core().workers())
        asked += view.state == WorkerState::active;
    EXPECT_EQ(asked, 2u);

    for (const WorkerId worker : swarm.workers_alive()) swarm.answer_error(worker, "");
    EXPECT_GT(rounds_for(swarm, 3s), 100u);
}

TEST(WorkerHealthStory, OnlyHolderIsUsedDespiteItsEjection) {
    SimOptions health_options = four_workers(false);
    health_options.swarm.replicas = 1;
    SimSwarm swarm(health_options);
    join_four(swarm);
    const WorkerId broken = swarm.workers_alive().front();
    swarm.answer_error(broken, "device_lost");
    for (int i = 0; i < 3; ++i) swarm.submit({.layer = static_cast<std::uint32_t>(i)});
    swarm.run_for(1s);
    ASSERT_EQ(swarm.core().worker(broken)->state, WorkerState::unhealthy);

    swarm.answer_error(broken, "");
    swarm.run_for(2s);
    EXPECT_EQ(swarm.core().num_rounds_open(), 0u) << "it is not left alone for five seconds";
    EXPECT_EQ(swarm.core().counters().rounds_failed, 0u);
}

// The access point of all workers fails. In an earlier version each layer tried three silent
// workers one after the other, and a token took 7.2 s.
TEST(WorkerHealthStory, WhenAllFallSilentAtOnceTheLocalBackendComputesAtOnce) {
    SimOptions health_options = four_workers(true);
    health_options.num_layers = 48;
    health_options.budget_experts = 200;
    SimSwarm swarm(health_options);
    for (int i = 0; i < 16; ++i) swarm.join(Peer::ours, text("10.0.", i, ".1"));
    ASSERT_TRUE(swarm.run_until_ready());
    rounds_for(swarm, 2s);

    for (const WorkerId worker : swarm.workers_alive()) swarm.stall(worker);
    const TimePoint start = swarm.now();
    for (std::uint32_t layer = 0; layer < 48; ++layer) {
        const RoundId round = swarm.submit({.layer = layer});
        ASSERT_TRUE(swarm.run_until_idle());
        ASSERT_TRUE(swarm.outcome(round).answer->ok());
    }
    // Expected time: 48 times the local backend's 5 ms, plus one timeout.
    EXPECT_LT(to_ms(swarm.now() - start), 1000);

    for (const WorkerId worker : swarm.workers_alive()) swarm.stall(worker, false);
    swarm.run_for(12s);
    const std::uint64_t local = swarm.core().counters().calls_local;
    rounds_for(swarm, 1s);
    EXPECT_EQ(swarm.core().counters().calls_local, local);
}

TEST(WorkerHealthStory, SilentSwarmWithoutLocalBackendSendsEachCallOnce) {
    SimSwarm swarm(four_workers(true));
    join_four(swarm);
    for (const WorkerId worker : swarm.workers_alive()) swarm.stall_compute(worker);
    swarm.submit({.num_tokens = 8});
    swarm.run_for(400ms);
    for (const WorkerId worker : swarm.workers_alive()) swarm.stall(worker);
    swarm.run_for(300ms);  // time after which all attempts are late, and no worker has answered

    swarm.core().set_local_fallback(false);
    const std::uint64_t before = swarm.core().counters().groups_sent;
    swarm.submit({.num_tokens = 8});
    swarm.run_for(50ms);
    for (int i = 0; i < 20; ++i) swarm.say(swarm.workers_alive().front(), encode_heartbeat(9999));
    EXPECT_LE(swarm.core().counters().groups_sent - before, 8u);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

}  // namespace
}  // namespace moex::sim
