// The connection to the hub: when it is opened, given up and opened again, and the effect of a
// frame that breaks the protocol.
#include "tests/web-worker/stage.h"

namespace moex {
namespace {

TEST(HubConnectionTest, WorkerReconnectsWithoutADownloadAndReportsItsExperts) {
    Stage stage;
    stage.serve({1, 4});
    EXPECT_EQ(stage.fetches, 2);

    stage.hang_up(1006, "");
    stage.welcome();
    stage.assign({1, 4});
    EXPECT_EQ(stage.fetches, 2);
}

// The worker sends READY first, and the hub decides only then which experts this worker shall hold.
TEST(HubConnectionTest, FirstReadyReportsKeptExpertsToAWaitingHub) {
    Stage stage;
    stage.hub_caps.push_back("held");
    stage.core->start();
    stage.welcome();
    EXPECT_TRUE(decode_units(stage.next(FrameType::ready), stage.limits)->empty());
    stage.assign({1, 4});

    stage.hang_up(1006, "");
    stage.welcome();
    EXPECT_EQ(*decode_units(stage.next(FrameType::ready), stage.limits),
              (std::vector<Unit>{{0, 1}, {0, 4}}));
    stage.assign({4, 2});
    EXPECT_EQ(stage.fetches, 3);
}

const HubPlace other_hub{"bbbbbbbb", "https://b.example"};

bool reads_hubs(Stage& stage) {
    const auto hello = decode_hello(stage.next(FrameType::hello));
    stage.give(stage.welcome_frame());
    return std::ranges::count(hello->caps, hubs_cap) == 1;
}

// The weights stay on the GPU: the other hub learns of them with the first READY.
TEST(HubConnectionTest, AWorkerMovesToAnotherHubWithItsExperts) {
    Stage stage;
    stage.hub_caps.push_back("held");
    stage.hub_id = "aaaaaaaa";
    stage.hubs = {other_hub};
    stage.core->start();
    EXPECT_TRUE(reads_hubs(stage));
    EXPECT_TRUE(decode_units(stage.next(FrameType::ready), stage.limits)->empty());
    stage.assign({1, 4});
    EXPECT_EQ(stage.known_hub, "aaaaaaaa");
    EXPECT_EQ(stage.other_hubs, std::vector{other_hub});

    const HubPlace third{"cccccccc", "https://c.example"};
    stage.give(encode_hubs({{third, other_hub}, false}));
    EXPECT_EQ(stage.other_hubs, (std::vector{third, other_hub}));
    EXPECT_EQ(stage.moves_to, HubPlace{}) << "news of hubs move no worker";
    stage.give(encode_hubs({{other_hub}, true}));
    EXPECT_EQ(stage.moves_to, other_hub);
    EXPECT_TRUE(decode_drain(stage.next(FrameType::drain)).ok());
    stage.expect_answer(5, 1);  // until the hub closes the connection
    stage.hub_id = other_hub.id;
    const double now_ms = stage.clock_ms;
    stage.hang_up(1001, "it drained");
    EXPECT_TRUE(reads_hubs(stage));
    EXPECT_EQ(stage.clock_ms, now_ms) << "it joins at once";
    EXPECT_EQ(*decode_units(stage.next(FrameType::ready), stage.limits),
              (std::vector<Unit>{{0, 1}, {0, 4}}));
    stage.assign({1, 4});
    EXPECT_EQ(stage.fetches, 2);
    stage.expect_answer(6, 4);
}

TEST(HubConnectionTest, ANewWorkerChoosesItsHubOnce) {
    Stage stage;
    stage.hub_id = "aaaaaaaa";
    stage.hubs = {other_hub};
    stage.hub_need = {.units = 4, .missing = 1, .thin = 2, .workers = 3, .streams = 5};
    stage.better_hub = other_hub;
    stage.core->start();
    EXPECT_TRUE(reads_hubs(stage));
    EXPECT_EQ(stage.known_need, stage.hub_need);
    EXPECT_EQ(stage.moves_to, other_hub);
    EXPECT_TRUE(decode_drain(stage.next(FrameType::drain)).ok());
    stage.hub_id = other_hub.id;
    stage.hang_up(1001, "it drained");
    EXPECT_TRUE(reads_hubs(stage));
    stage.assign({1});
    EXPECT_EQ(stage.choices, 1) << "a worker does not go to and fro";
}

TEST(HubConnectionTest, AMoveThatEndsElsewhereIsTheLastOneForAMinute) {
    Stage stage;
    stage.hub_id = "aaaaaaaa";
    stage.serve({1});
    stage.give(encode_hubs({{other_hub}, true}));
    stage.hang_up(1001, "it drained");
    EXPECT_TRUE(reads_hubs(stage)) << "it does not know yet where it is";
    // The balancer has sent it back, since the other hub is gone.
    stage.moves_to = {};
    stage.give(encode_hubs({{other_hub}, true}));
    EXPECT_EQ(stage.moves_to, HubPlace{});
    stage.hang_up(1006, "");
    EXPECT_TRUE(reads_hubs(stage)) << "it reads which hubs live";
    stage.give(encode_hubs({{other_hub}, false}));
    EXPECT_EQ(stage.other_hubs, std::vector{other_hub});

    const double lost_at_ms = stage.clock_ms;
    stage.clock_ms = lost_at_ms + 58'000;
    stage.give(encode_hubs({{other_hub}, true}));
    EXPECT_EQ(stage.moves_to, HubPlace{});
    stage.clock_ms = lost_at_ms + 60'000;
    stage.give(encode_hubs({{other_hub}, true}));
    EXPECT_EQ(stage.moves_to, other_hub);
}

TEST(HubConnectionTest, AHubThatDoesNotEndAMoveIsLeftAtItsDeadline) {
    Stage stage;
    stage.serve({1});
    stage.give(encode_hubs({{other_hub}, true}));
    stage.hub_id = other_hub.id;
    stage.long_waits = true;
    stage.run_until([&] { return !stage.connected; });
    stage.long_waits = false;
    EXPECT_TRUE(reads_hubs(stage));
}

TEST(HubConnectionTest, AMoveThatThePlatformCannotMakeChangesNothing) {
    Stage stage;
    stage.can_move = false;
    stage.serve({1});
    stage.give(encode_hubs({{other_hub}, true}));
    stage.expect_answer(5, 1);
    EXPECT_FALSE(stage.has_sent(FrameType::drain));
}

TEST(HubConnectionTest, AWorkerThatIsBackOnTheNetworkDoesNotWaitForItsNextTry) {
    Stage stage;
    stage.serve({1});

    stage.hang_up(1006, "");
    stage.run_until_phase(WorkerPhase::offline);

    EXPECT_GT(stage.status().retry_at_ms, stage.clock_ms);
    const double now_ms = stage.clock_ms;
    stage.core->on_network_back();
    stage.welcome();
    EXPECT_EQ(stage.clock_ms, now_ms);
}

TEST(HubConnectionTest, ASilentHubIsLeft) {
    Stage stage;
    stage.serve({1});

    stage.long_waits = true;
    stage.run_until([&] { return !stage.connected; });  // time passes without a frame from the hub
    stage.long_waits = false;
    EXPECT_GE(stage.clock_ms, 12000);

    stage.welcome();
    stage.assign({1});
    EXPECT_EQ(stage.fetches, 1);
}

TEST(HubConnectionTest, HubThatNeverSendsWelcomeIsLeft) {
    Stage stage;
    stage.core->start();
    (void)stage.next(FrameType::hello);

    stage.long_waits = true;
    stage.run_until_phase(WorkerPhase::offline);
    EXPECT_GE(stage.clock_ms, 12000);

    stage.welcome();
    stage.long_waits = false;
    stage.assign({1});
}

// Regression: the worker once tried to reconnect about once a second without end.
TEST(HubConnectionTest, HubThatBreaksAfterWelcomeIsRetriedMoreSlowly) {
    Stage stage;
    stage.core->start();
    stage.long_waits = true;

    double last_ms = 0, waits_ms = 0;
    for (int i = 0; i < 5; ++i) {
        stage.welcome();
        stage.hang_up(1006, "");
        stage.run_until_phase(WorkerPhase::offline);
        waits_ms = stage.status().retry_at_ms - stage.clock_ms;
        EXPECT_GT(waits_ms, last_ms);
        last_ms = waits_ms;
    }
    stage.welcome();
    for (int second = 0; second < 12; ++second) {  // for 12 seconds the hub serves
        stage.clock_ms += 1000;
        stage.give(encode_heartbeat(1));
    }
    stage.hang_up(1006, "");
    stage.run_until_phase(WorkerPhase::offline);
    EXPECT_LE(stage.status().retry_at_ms - stage.clock_ms, 1000);
}

TEST(HubConnectionTest, ARefusedTokenIsFinal) {
    Stage stage;
    stage.core->start();
    (void)stage.next(FrameType::hello);
    stage.hang_up(1008, "bad token");
    stage.run_until_phase(WorkerPhase::refused);
    EXPECT_FALSE(stage.connected);
}

// Regression: a refused worker once continued to fetch its experts, and kept its experts on the
// GPU.
TEST(HubConnectionTest, ARefusedWorkerFetchesNothingMoreAndFreesItsMemory) {
    Stage stage;
    stage.serve({1});
    stage.fetches_failing = 1000;
    stage.give(encode_assign(units_of({2, 3})));
    // Both downloads have failed and wait for a retry.
    stage.run_until([&] { return stage.status().errors == 2; });
    stage.hold_fetches = true;
    // A third download is in flight.
    stage.give(encode_assign(units_of({4})));
    stage.give(encode_error({.sequence_id = no_sequence_id,
                             .code = "unauthorized",
                             .found = "removed by the host",
                             .fatal = true}));
    stage.hang_up(1008, "removed");
    stage.run_until_phase(WorkerPhase::refused);
    EXPECT_TRUE(stage.held_fetches.empty());
    EXPECT_EQ(stage.status().device.buffer_bytes, 0u);
    stage.hold_fetches = false;
    const int fetches = stage.fetches;
    stage.long_waits = true;
    stage.run_until([&] { return stage.timers.empty(); });
    EXPECT_EQ(stage.fetches, fetches);
}

TEST(HubConnectionTest, AFrameThatBreaksTheRulesClosesTheConnection) {
    Stage stage;
    stage.serve({1});
    Bytes broken = encode_group_dispatch(group_of(1, 1), false);
    broken.resize(broken.size() - 4);
    stage.give(broken);
    EXPECT_TRUE(decode_error(stage.next(FrameType::error))->fatal);
    EXPECT_FALSE(stage.connected);
}

Bytes frame_of(FrameType type, std::string_view payload) {
    ByteWriter out;
    begin_frame(out, type, 0);
    out.raw(as_byte_view(payload));
    return finish_frame(std::move(out));
}

struct BadFrame {
    const char* what;
    std::function<Bytes()> frame;
    const char* code;
};
class BadFrameTest : public testing::TestWithParam<BadFrame> {};
TEST_P(BadFrameTest, IsAnsweredWithAFatalErrorAnd1002) {
    Stage stage;
    stage.serve({1});
    stage.give(GetParam().frame());
    const auto error = decode_error(stage.next(FrameType::error));
    EXPECT_TRUE(error->fatal);
    EXPECT_EQ(error->code, GetParam().code);
    EXPECT_EQ(stage.closed_with, 1002);
    stage.welcome();  // and reconnects
}
INSTANTIATE_TEST_SUITE_P(
    Table, BadFrameTest,
    testing::Values(
        BadFrame{"Challenge", [] { return frame_of(FrameType::challenge, ""); }, "unknown_type"},
        BadFrame{"Proof", [] { return frame_of(FrameType::proof, "x"); }, "unknown_type"},
        BadFrame{"Hello", [] { return encode_hello({}); }, "unknown_type"},
        BadFrame{"SecondWelcome",
                 [] {
                     return encode_welcome({.worker_id = 8,
                                            .model_name = "n",
                                            .limits = stage_limits,
                                            .expert_shape = stage_shape,
                                            .top_k = 2,
                                            .expert_blob_bytes = stage_blob_bytes});
                 },
                 "unknown_type"},
        BadFrame{"CancelWithPayload", [] { return frame_of(FrameType::cancel, "x"); },
                 "payload_size"},
        BadFrame{"HeartbeatWithPayload", [] { return encode_heartbeat(1, "{}"); }, "payload_size"},
        BadFrame{"PrefetchOfOneByte", [] { return frame_of(FrameType::prefetch, "x"); },
                 "payload_size"},
        BadFrame{"Budget", [] { return encode_budget({}); }, "unknown_type"},
        BadFrame{"DrainOfTwoBytes", [] { return frame_of(FrameType::drain, "ab"); },
                 "payload_size"}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(HubConnectionTest, ATextMessageEndsTheConnectionWithItsCode) {
    Stage stage;
    stage.serve({1});
    stage.core->on_text();
    EXPECT_TRUE(decode_error(stage.next(FrameType::error))->fatal);
    EXPECT_EQ(stage.closed_with, 1003);
}

}  // namespace
}  // namespace moex
