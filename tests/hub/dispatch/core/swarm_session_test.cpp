// Tests the sessions of workers: which are admitted, which are disconnected and with which code,
// and changes of a worker's memory limit. Other files: leaving_workers_test.cpp,
// returning_workers_test.cpp, published_peers_test.cpp.
#include <gtest/gtest.h>

#include "protocol/json.h"
#include "tests/hub/dispatch/swarm_stage.h"

namespace moex::sim {
namespace {

Hello good_hello() {
    Hello hello;
    hello.token = "sim-token";
    hello.device.budget_bytes = 1 << 20;
    return hello;
}

Bytes text_frame(FrameType type, std::string_view payload) {
    ByteWriter out;
    begin_frame(out, type, 0);
    out.raw(as_byte_view(payload));
    return finish_frame(std::move(out));
}

struct Refusal {
    const char* what;
    bool authorized;
    std::function<Bytes()> first_frame;
    CloseCode code;
};

class FirstFrameTest : public testing::TestWithParam<Refusal> {};

TEST_P(FirstFrameTest, IsRefusedAndTheHubServesOn) {
    SimSwarm swarm(no_workers());
    const WorkerId bad = swarm.connect(GetParam().authorized);
    swarm.say(bad, GetParam().first_frame());
    EXPECT_EQ(swarm.closed_with(bad), GetParam().code);
    swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    const RoundId round = swarm.submit();
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.outcome(round).y, swarm.outcome(round).want);
    EXPECT_EQ(swarm.core().counters().removed, 0u);  // the refused connection was never a member
}
INSTANTIATE_TEST_SUITE_P(
    Table, FirstFrameTest,
    testing::Values(
        Refusal{"BadToken", false,
                [] {
                    Hello h = good_hello();
                    h.token = "wrong";
                    return encode_hello(h);
                },
                CloseCode::policy},
        Refusal{"NoToken", false,
                [] {
                    Hello h = good_hello();
                    h.token.clear();
                    return encode_hello(h);
                },
                CloseCode::policy},
        Refusal{"NewerVersion", false,
                [] {
                    Hello h = good_hello();
                    h.version_min = h.version_max = 2;
                    return encode_hello(h);
                },
                CloseCode::protocol_error},
        Refusal{"NotJson", false, [] { return text_frame(FrameType::hello, "{\"versions\":"); },
                CloseCode::protocol_error},
        Refusal{"EmptyHello", false, [] { return text_frame(FrameType::hello, ""); },
                CloseCode::protocol_error},
        Refusal{"HelloAboveFourKiB", false,
                [] { return text_frame(FrameType::hello, std::string(5000, ' ')); },
                CloseCode::too_big},
        Refusal{"Ready", false, [] { return encode_ready({{.layer = 0, .expert = 0}}); },
                CloseCode::protocol_error},
        Refusal{"UnauthorizedHeartbeat", false, [] { return encode_heartbeat(0, "{}"); },
                CloseCode::policy},
        Refusal{"HeartbeatWithoutJson", true, [] { return encode_heartbeat(0, "not json"); },
                CloseCode::protocol_error},
        Refusal{"WrongMagic", false,
                [] {
                    Bytes f = encode_hello(good_hello());
                    f[0] = std::byte{0};
                    return f;
                },
                CloseCode::protocol_error},
        Refusal{"Truncated", false,
                [] {
                    Bytes f = encode_hello(good_hello());
                    f.resize(10);
                    return f;
                },
                CloseCode::protocol_error},
        Refusal{"LengthLies", false,
                [] {
                    Bytes f = encode_hello(good_hello());
                    f.pop_back();
                    return f;
                },
                CloseCode::protocol_error},
        Refusal{"Empty", false, [] { return Bytes{}; }, CloseCode::protocol_error},
        Refusal{"NoGroups", false,
                [] {
                    Hello h = good_hello();
                    h.caps.clear();
                    return encode_hello(h);
                },
                CloseCode::protocol_error}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(SwarmSessionTest, SilenceEndsAfterFiveSeconds) {
    SimSwarm swarm(no_workers());
    const WorkerId silent = swarm.connect(false);
    swarm.run_for(4900ms);
    EXPECT_FALSE(swarm.closed_with(silent).has_value());
    swarm.run_for(200ms);
    EXPECT_EQ(swarm.closed_with(silent), CloseCode::policy);
}

TEST(SwarmSessionTest, BearerTokenIsEnoughForHello) {
    SimSwarm swarm(no_workers());
    const WorkerId worker = swarm.connect(true);
    Hello hello = good_hello();
    hello.token.clear();
    swarm.say(worker, encode_hello(hello));
    ASSERT_TRUE(swarm.run_until_ready());
    EXPECT_EQ(swarm.core().worker(worker)->state, WorkerState::active);
}

TEST(SwarmSessionTest, ADeterministicHubAsksForExactAnswers) {
    for (const bool deterministic : {true, false}) {
        SimOptions options = no_workers();
        options.swarm.rounding.deterministic = deterministic;
        SimSwarm swarm(options);
        const WorkerId worker = swarm.connect(true);
        Hello hello = good_hello();
        hello.arithmetic = WorkerArithmetic::int8;
        swarm.say(worker, encode_hello(hello));
        ASSERT_TRUE(swarm.run_until_ready());
        EXPECT_EQ(swarm.core().worker(worker)->arithmetic,
                  deterministic ? WorkerArithmetic::exact : WorkerArithmetic::int8);
    }
}

struct BadFrame {
    const char* what;
    std::function<Bytes()> frame;
};
class LaterFrameTest : public testing::TestWithParam<BadFrame> {};
TEST_P(LaterFrameTest, IsAProtocolError) {
    SimSwarm swarm(no_workers());
    const WorkerId worker = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.say(worker, GetParam().frame());
    EXPECT_EQ(swarm.closed_with(worker), CloseCode::protocol_error);
}
INSTANTIATE_TEST_SUITE_P(
    Table, LaterFrameTest,
    testing::Values(
        BadFrame{"ResultOfANeverIssuedId",
                 [] {
                     return encode_result(
                         {.sequence_id = 777, .layer = 0, .expert = 0, .y = std::vector<float>(32)},
                         32, false);
                 }},
        BadFrame{
            "GroupResultOfANeverIssuedId",
            [] {
                return encode_group_result(
                    {.sequence_id = 12345,
                     .shape = {.num_tokens = 1, .hidden_dim = 32, .num_pairs = 1, .num_experts = 1},
                     .y = std::vector<float>(32)},
                    false);
            }},
        BadFrame{"ReadyOfAnUnknownExpert",
                 [] { return encode_ready({{.layer = 0, .expert = 999}}); }},
        BadFrame{"Assign", [] { return encode_assign({{.layer = 0, .expert = 0}}); }},
        BadFrame{"Cancel", [] { return encode_cancel(1); }},
        BadFrame{"SecondHello", [] { return encode_hello(good_hello()); }},
        BadFrame{"Proof", [] { return text_frame(FrameType::proof, "x"); }},
        BadFrame{"Challenge", [] { return text_frame(FrameType::challenge, ""); }},
        BadFrame{"HeartbeatWithPayload", [] { return encode_heartbeat(1, "{}"); }},
        BadFrame{"DrainOfTwoBytes", [] { return text_frame(FrameType::drain, "ab"); }},
        BadFrame{"BusyOfThreeBytes", [] { return text_frame(FrameType::busy, "abc"); }},
        BadFrame{"ErrorWithoutJson", [] { return text_frame(FrameType::error, "boom"); }}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(SwarmSessionTest, TheHubIsFullBeyondWorkersMax) {
    SimOptions options = no_workers();
    options.swarm.workers_max = 1;
    SimSwarm swarm(options);
    swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId second = swarm.join();
    swarm.run_for(1s);
    EXPECT_EQ(swarm.closed_with(second), CloseCode::going_away);
}

// A dense model has no work for workers. The close code is final: a worker must not reconnect after
// a refusal with code `policy`.
TEST(SwarmSessionTest, ADenseModelHasNoPlaceForAWorker) {
    SimOptions options = no_workers();
    options.num_experts = options.top_k = 0;
    SimSwarm swarm(options);
    const WorkerId worker = swarm.join();
    swarm.run_for(1s);
    EXPECT_EQ(swarm.closed_with(worker), CloseCode::policy);
}

// gpt-oss's experts: a worker of an earlier version would compute them without biases and clamp.
TEST(SwarmSessionTest, ClampedExpertsNeedAWorkerThatComputesThem) {
    SimOptions options = no_workers();
    options.swarm.expert_shape.has_bias = true;
    options.swarm.expert_shape.clamp = 7;
    SimSwarm swarm(options);

    const WorkerId older = swarm.connect(false);
    swarm.say(older, encode_hello(good_hello()));
    EXPECT_EQ(swarm.closed_with(older), CloseCode::policy);
    const auto refusal = decode_error(swarm.frames_to(older).front());
    ASSERT_TRUE(refusal.ok());
    EXPECT_EQ(refusal->code, "unsupported");
    EXPECT_NE(refusal->found.find("needs a newer worker"), std::string::npos);
    EXPECT_LE(refusal->found.size(), 123u);  // a close frame has no room for more
    EXPECT_EQ(swarm.closed_with(swarm.join(Peer::published)), CloseCode::policy);
    EXPECT_EQ(swarm.core().coverage().replicas_min, 0u);

    Hello hello = good_hello();
    hello.caps.push_back(clamped_cap);
    const WorkerId able = swarm.connect(false);
    swarm.say(able, encode_hello(hello));
    EXPECT_FALSE(swarm.closed_with(able).has_value());
    // The hub has asked the worker to compute this form, with the clamp's bits.
    EXPECT_EQ(parse_json_object(as_text_view(ByteView(swarm.frames_to(able).front()).subspan(16)),
                                65536, "WELCOME")
                  ->at("model")
                  .at("clamp_bits"),
              0x40e00000u);
}

TEST(SwarmSessionTest, Mxfp4ExpertsNeedAWorkerThatComputesThem) {
    SimOptions options = no_workers();
    options.swarm.expert_shape.codes = ExpertDtype::mxfp4;
    options.swarm.expert_shape.group_size = mxfp4_block;
    options.swarm.expert_blob_bytes = expert_blob_layout(options.swarm.expert_shape).size_bytes;
    SimSwarm swarm(options);

    Hello hello = good_hello();
    hello.caps.push_back(clamped_cap);
    const WorkerId older = swarm.connect(false);
    swarm.say(older, encode_hello(hello));
    EXPECT_EQ(swarm.closed_with(older), CloseCode::policy);
    const auto refusal = decode_error(swarm.frames_to(older).front());
    ASSERT_TRUE(refusal.ok());
    EXPECT_EQ(refusal->code, "unsupported");
    EXPECT_NE(refusal->found.find("MXFP4"), std::string::npos);
    EXPECT_LE(refusal->found.size(), 123u);  // a close frame has no room for more
    EXPECT_EQ(swarm.closed_with(swarm.join(Peer::published)), CloseCode::policy);

    hello.caps.push_back(mxfp4_cap);
    const WorkerId able = swarm.connect(false);
    swarm.say(able, encode_hello(hello));
    EXPECT_FALSE(swarm.closed_with(able).has_value());
    EXPECT_EQ(parse_json_object(as_text_view(ByteView(swarm.frames_to(able).front()).subspan(16)),
                                65536, "WELCOME")
                  ->at("model")
                  .at("codes"),
              "mxfp4");
}

// Rows as int8 take half the bytes of f16. The judge computes with the rounded rows that the worker
// received.
TEST(SwarmSessionTest, CapableWorkersGetInt8RowsUnlessDeterministic) {
    for (const bool deterministic : {false, true}) {
        SimOptions options{.num_workers = 2, .seed = 3, .log = true};
        options.swarm.rounding.deterministic = deterministic;
        options.swarm.x_int8 = true;
        options.swarm.local_fallback = false;
        options.swarm.replicas = 2;
        options.swarm.checks.on = options.swarm.checks.judge = true;
        SimSwarm swarm(options);
        ASSERT_TRUE(swarm.run_until_ready());
        for (std::uint32_t i = 0; i < 12; ++i) {
            const RoundId round = swarm.submit({.layer = i % 3, .num_tokens = 1 + i % 4});
            ASSERT_TRUE(swarm.run_until_idle());
            EXPECT_FALSE(swarm.outcome(round).wrong) << swarm.outcome(round).error_max;
        }

        std::size_t num_groups = 0;
        for (const WorkerId worker : swarm.workers_alive())
            for (const Bytes& frame : swarm.frames_to(worker))
                if (const auto group = decode_group_dispatch(frame, swarm.core().options().limits);
                    group.ok()) {
                    ++num_groups;
                    EXPECT_EQ(group->x_int8, !deterministic);
                    EXPECT_EQ(group->shape.dtype, Dtype::f16);
                }
        EXPECT_GT(num_groups, 0u);
        EXPECT_EQ(swarm.core().counters().lies, 0u);
        EXPECT_LE(swarm.core().counters().residual_max, 1.0 / 3);
        EXPECT_TRUE(swarm.violations().empty());
    }
}

TEST(SwarmSessionTest, SequenceIdsWrapInMidService) {
    SimOptions options = no_workers();
    options.swarm.first_sequence_id = 0xfffffffcu;
    SimSwarm swarm(options);
    const WorkerId worker = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());

    for (int i = 0; i < 12; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        EXPECT_EQ(swarm.outcome(round).y, swarm.outcome(round).want);
    }
    EXPECT_EQ(swarm.core().worker(worker)->groups_answered, 12u);
}

// A worker connects again before its old connection, the ghost, is lost. In an earlier version both
// connections had a place, and calls to the ghost got no answer until its heartbeats were missed.
TEST(SwarmSessionTest, AWorkerThatComesBackTakesThePlaceOfItsGhost) {
    SimOptions options = no_workers();
    options.swarm.replicas = 1;
    SimSwarm swarm(options);
    const WorkerId other = swarm.join(Peer::ours, "10.0.0.1", "other");
    const WorkerId ghost = swarm.join(Peer::ours, "10.0.0.2", "mine");
    ASSERT_TRUE(swarm.run_until_ready());

    const std::uint32_t others = swarm.core().worker(other)->units_assigned,
                        share = swarm.core().worker(ghost)->units_assigned;
    swarm.stall(ghost);
    const std::size_t frames_before = swarm.frames_to(other).size();
    const WorkerId back = swarm.join(Peer::ours, "10.0.0.2", "mine");
    swarm.run_for(20ms);  // time in which the worker reports its cached units
    EXPECT_EQ(swarm.closed_with(ghost), CloseCode::policy);
    EXPECT_EQ(swarm.core().worker(back)->units_assigned, share);
    EXPECT_EQ(swarm.core().worker(other)->units_assigned, others);

    // No unit was moved to the other worker and back.
    EXPECT_EQ(swarm.frames_to(other).size(), frames_before);
    EXPECT_EQ(swarm.core().counters().removed, 0u);
    ASSERT_TRUE(swarm.run_until_ready());

    for (int i = 0; i < 6; ++i) {
        const RoundId round = swarm.submit({.num_tokens = 4});
        ASSERT_TRUE(swarm.run_until_idle());
        EXPECT_EQ(swarm.outcome(round).y, swarm.outcome(round).want);
    }
    EXPECT_EQ(swarm.core().counters().timeouts, 0u);
}

// In an earlier version a change of the worker's memory limit ended the connection, and all units
// were assigned and loaded again.
TEST(SwarmSessionTest, MemoryLimitChangeKeepsConnectionAndFittingUnits) {
    SimOptions options = no_workers();
    options.swarm.local_fallback = false;
    options.swarm.replicas = 1;
    SimSwarm swarm(options);
    const WorkerId moved = swarm.join(), other = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    ASSERT_EQ(swarm.core().worker(moved)->units_assigned, 24u);

    swarm.resize(moved, 10);
    EXPECT_EQ(swarm.core().worker(moved)->units_ready, 10u) << "what it kept is not loaded again";
    ASSERT_TRUE(swarm.run_until_ready());
    EXPECT_EQ(swarm.core().worker(moved)->units_assigned, 10u);
    EXPECT_EQ(swarm.core().worker(other)->units_assigned, 38u);
    const RoundId with_less = swarm.submit({.num_tokens = 6});
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.outcome(with_less).y, swarm.outcome(with_less).want);

    swarm.resize(moved, 1000);
    EXPECT_EQ(swarm.core().worker(moved)->units_ready, 10u);
    ASSERT_TRUE(swarm.run_until_ready());
    EXPECT_EQ(swarm.core().worker(moved)->units_assigned, 24u);
    EXPECT_EQ(swarm.core().worker(other)->units_assigned, 24u);

    EXPECT_FALSE(swarm.closed_with(moved).has_value());
    EXPECT_EQ(swarm.core().worker(moved)->errors, 0u);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

TEST(SwarmSessionTest, ALimitThatNamesTooLittleLetsTheHubChooseTheRest) {
    SimOptions options = no_workers();
    options.swarm.local_fallback = false;
    options.swarm.replicas = 1;
    SimSwarm swarm(options);
    const WorkerId moved = swarm.join();
    swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.say(moved, encode_budget({.budget_bytes = 0}));
    EXPECT_EQ(swarm.core().worker(moved)->units_ready, 24u)
        << "the only copies: made before broken";
    swarm.run_for(2s);
    EXPECT_EQ(swarm.core().worker(moved)->units_assigned, 0u);
    const RoundId round = swarm.submit({.num_tokens = 6});
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.outcome(round).y, swarm.outcome(round).want);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

}  // namespace
}  // namespace moex::sim
