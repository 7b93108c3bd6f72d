// Tests WorkerCore as a whole: the calls that it serves, and its phases over pause and resume.
#include "tests/web-worker/stage.h"

namespace moex {
namespace {

class ServingTest : public testing::TestWithParam<ExpertForm> {};
const char* name_of(ExpertForm form) {
    switch (form) {
        case ExpertForm::plain: return "Plain";
        case ExpertForm::clamped: return "Clamped";
        case ExpertForm::mxfp4: return "Mxfp4";
        case ExpertForm::mxfp4_clamped: break;
    }
    return "Mxfp4Clamped";
}
INSTANTIATE_TEST_SUITE_P(EveryForm, ServingTest,
                         testing::Values(ExpertForm::plain, ExpertForm::clamped, ExpertForm::mxfp4,
                                         ExpertForm::mxfp4_clamped),
                         [](const auto& info) { return name_of(info.param); });

// The known answers of other forms than the plain one are computed once a model has such experts.
TEST_P(ServingTest, WorkerServesWhatItWasAssigned) {
    const bool is_plain = GetParam() == ExpertForm::plain;
    Stage stage;
    if (GetParam() == ExpertForm::clamped || GetParam() == ExpertForm::mxfp4_clamped)
        stage.shape = clamped_shape;
    if (GetParam() == ExpertForm::mxfp4 || GetParam() == ExpertForm::mxfp4_clamped)
        stage.shape.codes = ExpertDtype::mxfp4;
    ASSERT_EQ(stage.shape.form(), GetParam());
    stage.serve({1, 4});
    stage.expect_answer(11, 4);
    EXPECT_EQ(stage.status().adapter.backend, "vulkan");
    EXPECT_EQ(stage.status().self_test_rounds, is_plain ? 1u : 2u);
    EXPECT_LE(stage.status().self_test_nrmse, 1e-6);

    // The call of the published protocol: f16 rows for one expert, computed by the three plain
    // kernels.
    const GroupDispatch group = group_of(0, 1);
    Dispatch call{.sequence_id = 12,
                  .layer = 0,
                  .expert = 1,
                  .dtype = Dtype::f16,
                  .x = group.x,
                  .gates = group.gates};
    round_rows(Dtype::f16, call.x, 96);
    stage.give(encode_dispatch(call, 96, false));
    const auto single = decode_result(stage.next(FrameType::result), stage.limits);
    ASSERT_TRUE(single.ok()) << single.error().message;
    GroupDispatch same = group;
    same.x = call.x;
    EXPECT_LE(error_of(single->y, same, stage.shape), 5e-4);

    stage.give(encode_heartbeat(99));
    EXPECT_EQ(decode_frame_header(stage.next(FrameType::heartbeat))->sequence_id, 99u);
    stage.give(encode_group_dispatch(group_of(13, 5), false));
    const auto refused = decode_error(stage.next(FrameType::error));
    EXPECT_EQ(refused->sequence_id, 13u);
    EXPECT_EQ(refused->code, "unknown_expert");
    EXPECT_FALSE(refused->fatal);
}

// The GPU's speed is measured only once, since a GPU that is opened again is the same GPU.
TEST(WorkerCoreTest, HelloReportsTheGpusSpeed) {
    const TimingOptions brief{.shape_name = "demo",
                              .shape = {384, 256, 128},
                              .experts = 1,
                              .layers = 1,
                              .read_bytes = 1 << 20,
                              .rounds = 0,
                              .submission_us = 2e3,
                              .turns = 1,
                              .published = false};
    Stage stage(64u << 20, {.timing = brief});
    stage.core->start();
    const Bytes first = stage.next(FrameType::hello);
    const SpeedProfile speed = decode_hello(first)->speed;
    EXPECT_GT(speed.hidden_size, 0u);
    EXPECT_GT(speed.read_mb_s, 0u);
    for (const std::uint64_t expert_ns : speed.expert_ns) EXPECT_GT(expert_ns, 0u);

    EXPECT_EQ(stage.device->counters().buffer_bytes, 0u) << "measurement freed";
    ASSERT_GE(stage.lose_device("gone"), 0);
    EXPECT_EQ(decode_hello(stage.next(FrameType::hello))->speed.expert_ns, speed.expert_ns);
}

// Measuring the speed of a software adapter would take long, and the result is of no use to a hub.
TEST(WorkerCoreTest, ASoftwareAdapterIsNotMeasured) {
    Stage stage;
    stage.core->start();
    EXPECT_EQ(decode_hello(stage.next(FrameType::hello))->speed.read_mb_s, 0u);

    EXPECT_FALSE(TimingOptions::at_start({.software = true}, 1ull << 30).has_value());
    const auto small = TimingOptions::at_start({.software = false}, 16u << 20);
    ASSERT_TRUE(small.has_value());
    EXPECT_LE(small->experts * small->layers * expert_blob_layout(small->shape).size_bytes,
              8u << 20);
    EXPECT_LE(small->read_bytes, 8u << 20);
}

// The clock of the test moves only when a timer fires. All calls are answered at the same time of
// that clock, so the power that a contributor has set delays no answer.
TEST(WorkerCoreTest, PowerIsReportedAtOnceAndDelaysNothing) {
    Stage stage(64u << 20, {.power_percent = 40});
    stage.hub_caps.push_back(power_cap);
    stage.serve({1});
    EXPECT_EQ(decode_power(stage.next(FrameType::power)).value(), 40u);

    stage.core->set_power(70);
    stage.core->set_power(70);
    stage.core->set_power(3);
    EXPECT_EQ(decode_power(stage.next(FrameType::power)).value(), 70u);
    EXPECT_EQ(decode_power(stage.next(FrameType::power)).value(), power_percent_min);
    EXPECT_FALSE(stage.has_sent(FrameType::power));

    const double asked_ms = stage.clock_ms;
    stage.hold_timers = true;
    for (std::uint32_t i = 0; i < 20; ++i) stage.expect_answer(20 + i, 1);
    EXPECT_EQ(stage.clock_ms, asked_ms);
    stage.hold_timers = false;

    stage.hang_up(1006, "");
    stage.welcome();
    EXPECT_EQ(decode_power(stage.next(FrameType::power)).value(), power_percent_min);
}

TEST(WorkerCoreTest, FullPowerAndOlderHubsGetNoPowerFrame) {
    Stage full;
    full.hub_caps.push_back(power_cap);
    full.serve({1});
    EXPECT_FALSE(full.has_sent(FrameType::power));

    Stage older(64u << 20, {.power_percent = 40});
    older.serve({1});
    older.core->set_power(20);
    EXPECT_FALSE(older.has_sent(FrameType::power));
}

TEST(WorkerCoreTest, AnIdentityIsSentOnTheConnectionThatItWasSignedFor) {
    Stage stage;
    stage.core->start();
    stage.hub_nonce = "5f0c";
    Identity identity;
    identity.shows_nickname = true;
    stage.core->identify(7, identity);
    EXPECT_FALSE(stage.has_sent(FrameType::identity)) << "before WELCOME";

    stage.welcome();
    EXPECT_EQ(stage.status().nonce, "5f0c");
    stage.core->identify(6, identity);
    EXPECT_FALSE(stage.has_sent(FrameType::identity)) << "signed for another connection";
    stage.core->identify(7, identity);
    EXPECT_TRUE(decode_identity(stage.next(FrameType::identity))->shows_nickname);

    stage.hub_nonce.clear();
    stage.hang_up(1006, "");
    stage.welcome();
    stage.core->identify(7, identity);
    EXPECT_FALSE(stage.has_sent(FrameType::identity)) << "a hub that counts for no contributor";
}

TEST(WorkerCoreTest, APausedWorkerLeavesAndKeepsItsWeights) {
    Stage stage;
    stage.serve({1});

    stage.core->pause();
    EXPECT_FALSE(stage.connected);
    stage.run_until(
        [&] { return !stage.phases.empty() && stage.phases.back() == WorkerPhase::paused; });
    EXPECT_EQ(stage.status().units_ready, 1u);

    stage.core->resume();
    stage.welcome();
    stage.assign({1});
    stage.expect_answer(2, 1);
    EXPECT_EQ(stage.fetches, 1);
}

TEST(WorkerCoreTest, LeavingWorkerServesUntilTheHubCloses) {
    Stage stage;
    stage.serve({1});

    stage.core->leave();
    stage.core->leave();  // a second call changes nothing
    const Bytes drain = stage.next(FrameType::drain);
    EXPECT_EQ(*decode_drain(drain), 10'000u);
    stage.expect_answer(2, 1);
    EXPECT_TRUE(stage.connected);

    stage.hang_up(1001, "it drained");
    stage.run_until_phase(WorkerPhase::stopped);
    EXPECT_FALSE(stage.connected);
    EXPECT_TRUE(stage.timers.empty()) << "no reconnect";
}

TEST(WorkerCoreTest, LeavingWorkerWithoutAConnectionStopsAtOnce) {
    Stage stage;
    stage.core->start();
    stage.core->leave();
    EXPECT_EQ(stage.status().phase, WorkerPhase::stopped);
}

TEST(WorkerCoreTest, PauseAndResumeAtAnyMomentEndInService) {
    Stage stage;
    stage.core->start();
    stage.core->pause();  // pauses before the GPU is open
    stage.run_until([&] { return stage.devices_opened == 1; });
    EXPECT_EQ(stage.status().phase, WorkerPhase::paused);
    stage.run_until([&] { return stage.status().self_test_rounds == 1; });
    EXPECT_FALSE(stage.connected);

    stage.core->resume();

    stage.core->pause();  // pauses before the connection is open
    stage.core->resume();
    stage.welcome();
    stage.core->pause();   // pauses again, before any expert was assigned
    stage.core->resume();  // resumes while the platform is still closing the connection
    stage.welcome();
    stage.assign({1});
    stage.expect_answer(2, 1);
}

// Regression: the page once showed a Pause button without effect, and no Resume button.
TEST(WorkerCoreTest, APausedWorkerIsShownAsPausedWhateverItsGpuDoes) {
    Stage stage;
    stage.serve({1});
    stage.core->pause();
    stage.device->break_down("reset");
    stage.phases.clear();
    stage.run_until([&] { return stage.devices_opened == 2; });
    stage.run_until([&] { return stage.status().self_test_rounds == 2; });

    for (const WorkerPhase phase : stage.phases) EXPECT_EQ(phase, WorkerPhase::paused);
    EXPECT_EQ(stage.status().phase, WorkerPhase::paused);

    stage.device->break_down("reset again");
    stage.run_until([&] { return !stage.timers.empty(); });

    stage.core->resume();
    EXPECT_EQ(stage.status().phase, WorkerPhase::gpu_lost);
    EXPECT_NE(stage.status().detail.find("reset again"), std::string::npos)
        << stage.status().detail;

    stage.long_waits = true;
    stage.run_until([&] { return stage.devices_opened == 3; });
    stage.long_waits = false;
    stage.welcome();
    stage.assign({1});
}

}  // namespace
}  // namespace moex
