// Loss of the GPU: the device is opened again after longer and longer delays, with a smaller budget
// after out of memory, and given up in the end.
#include <algorithm>

#include "tests/web-worker/stage.h"

namespace moex {
namespace {

TEST(DeviceKeeperTest, LostGpuIsOpenedAgainAndAnswersAsBefore) {
    Stage stage;
    stage.serve({1});

    EXPECT_LE(stage.lose_device("reset"), 1500);
    stage.welcome();
    stage.assign({1});

    stage.expect_answer(2, 1);
}

// Regression: a reconnect timer from before the GPU was lost once fired later, and closed the new
// connection that was serving.
TEST(DeviceKeeperTest, AGpuLostWhileOfflineLeavesNoRetryBehind) {
    Stage stage;
    stage.serve({1});
    stage.hub_is_down = stage.long_waits = true;
    stage.hang_up(1001, "restart");
    stage.run_until([&] { return stage.connects == 5; });
    stage.run_until_phase(WorkerPhase::offline);

    const double retry_at_ms = stage.status().retry_at_ms;
    stage.hub_is_down = false;
    stage.lose_device("sleep");
    ASSERT_LT(stage.clock_ms, retry_at_ms);

    stage.welcome();
    stage.assign({1});

    const int connects = stage.connects;
    stage.long_waits = true;
    while (stage.clock_ms < retry_at_ms + 1000) {
        stage.give(encode_heartbeat(1));
        (void)stage.next(FrameType::heartbeat);
        const double before_ms = stage.clock_ms;
        stage.set_timer(1000, [] {});
        stage.run_until([&] { return stage.clock_ms >= before_ms + 1000; });
    }
    EXPECT_EQ(stage.connects, connects);
    EXPECT_EQ(stage.status().phase, WorkerPhase::serving);
}

// Regression: the worker once showed "offline" while the GPU was tested, and opened a second
// connection beside the connection that it opened after the test.
TEST(DeviceKeeperTest, AConnectionThatEndsWhileTheNextGpuIsTestedIsNoReasonToRetry) {
    Stage stage;
    stage.serve({1});

    stage.hold_closing = true;
    stage.lose_device("reset");
    ASSERT_EQ(stage.status().phase, WorkerPhase::warming);

    stage.core->on_closed(1006, "GPU lost");
    EXPECT_EQ(stage.status().phase, WorkerPhase::warming);

    stage.welcome();
    stage.assign({1});
    EXPECT_EQ(stage.connects, 2);
}

// Regression: after each loss the GPU was once opened again, twice a second without end.
TEST(DeviceKeeperTest, AGpuThatFailsAgainAndAgainIsGivenUp) {
    Stage stage;
    stage.serve({1});

    double last_ms = 0;
    for (int fault = 1; fault <= 6; ++fault) {
        const double waited_ms = stage.lose_device("invalid command");
        EXPECT_GT(waited_ms, std::min(last_ms, 20000.0)) << fault;
        last_ms = waited_ms;
        stage.welcome();
        stage.assign({1});
    }

    EXPECT_LT(stage.lose_device("invalid command"), 0);
    EXPECT_EQ(stage.status().phase, WorkerPhase::failed);
    EXPECT_TRUE(
        stage.status().detail.starts_with("This GPU fails again and again (invalid command)"))
        << stage.status().detail;
    EXPECT_FALSE(stage.connected);
    EXPECT_TRUE(stage.timers.empty());  // the worker retries nothing until a person asks for it
}

TEST(DeviceKeeperTest, AFaultIsForgottenAfterAMinuteOfService) {
    Stage stage;
    stage.serve({1});

    for (int fault = 1; fault <= 8; ++fault) {
        EXPECT_LE(stage.lose_device("reset"), 1500) << fault;
        stage.welcome();
        stage.assign({1});
        stage.clock_ms += 61000;
    }
}

TEST(DeviceKeeperTest, OutOfMemoryHalvesTheLimitUntilItFits) {
    Stage stage(1000 * stage_blob_bytes);
    stage.limits = wide_limits;
    stage.device_memory_bytes = 1'500'000;

    std::vector<std::uint64_t> told;
    stage.core->start();
    for (int round = 0; round < 12 && stage.status().phase != WorkerPhase::serving; ++round) {
        told.push_back(stage.welcome());
        // Assign as many experts as HELLO reported.
        const std::uint64_t room = told.back() / stage_blob_bytes;
        stage.give(encode_assign(units_of(first_experts(std::min<std::uint64_t>(512, room)))));
        stage.run_until([&] {
            return stage.status().phase == WorkerPhase::serving ||
                   stage.status().phase == WorkerPhase::gpu_lost;
        });
    }

    EXPECT_EQ(stage.status().phase, WorkerPhase::serving);
    ASSERT_GE(told.size(), 2u);
    for (std::size_t i = 1; i < told.size(); ++i)
        EXPECT_NEAR(static_cast<double>(told[i]), static_cast<double>(told[i - 1]) / 2, 2);
    EXPECT_LE(stage.status().device.buffer_bytes, stage.device_memory_bytes);
}

TEST(DeviceKeeperTest, GpuWithoutMemoryForOneExpertIsReported) {
    Stage stage(3 * stage_blob_bytes);
    stage.core->start();
    stage.welcome();
    stage.give(encode_assign(units_of({1})));

    stage.device->break_down("7 bytes", gpu::LossKind::out_of_memory);
    stage.welcome();
    stage.device->break_down("7 bytes", gpu::LossKind::out_of_memory);

    stage.run_until_phase(WorkerPhase::failed);
    EXPECT_TRUE(stage.status().detail.starts_with("This GPU has too little free memory"))
        << stage.status().detail;
}

}  // namespace
}  // namespace moex
