// Sessions: who is let in, who is shown the door and with which code, drain, and the peer that speaks the five published messages only.
#include <gtest/gtest.h>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

SimOptions no_workers() {
    SimOptions options{.num_workers = 0, .seed = 3, .log = true};
    options.swarm.rounding.deterministic = true;
    return options;
}

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
    EXPECT_EQ(swarm.core().counters().removed, 0u);      // it never was one of us
}
INSTANTIATE_TEST_SUITE_P(
    Table, FirstFrameTest,
    testing::Values(
        Refusal{"BadToken", false, [] { Hello h = good_hello(); h.token = "wrong"; return encode_hello(h); }, CloseCode::policy},
        Refusal{"NoToken", false, [] { Hello h = good_hello(); h.token.clear(); return encode_hello(h); }, CloseCode::policy},
        Refusal{"NewerVersion", false, [] { Hello h = good_hello(); h.version_min = h.version_max = 2; return encode_hello(h); }, CloseCode::protocol_error},
        Refusal{"NotJson", false, [] { return text_frame(FrameType::hello, "{\"versions\":"); }, CloseCode::protocol_error},
        Refusal{"EmptyHello", false, [] { return text_frame(FrameType::hello, ""); }, CloseCode::protocol_error},
        Refusal{"HelloAboveFourKiB", false, [] { return text_frame(FrameType::hello, std::string(5000, ' ')); }, CloseCode::too_big},
        Refusal{"Ready", false, [] { return encode_ready({{.layer = 0, .expert = 0}}); }, CloseCode::protocol_error},
        Refusal{"UnauthorizedHeartbeat", false, [] { return encode_heartbeat(0, "{}"); }, CloseCode::policy},
        Refusal{"HeartbeatWithoutJson", true, [] { return encode_heartbeat(0, "not json"); }, CloseCode::protocol_error},
        Refusal{"WrongMagic", false, [] { Bytes f = encode_hello(good_hello()); f[0] = std::byte{0}; return f; }, CloseCode::protocol_error},
        Refusal{"Truncated", false, [] { Bytes f = encode_hello(good_hello()); f.resize(10); return f; }, CloseCode::protocol_error},
        Refusal{"LengthLies", false, [] { Bytes f = encode_hello(good_hello()); f.pop_back(); return f; }, CloseCode::protocol_error},
        Refusal{"Empty", false, [] { return Bytes{}; }, CloseCode::protocol_error},
        Refusal{"NoGroups", false, [] { Hello h = good_hello(); h.caps.clear(); return encode_hello(h); }, CloseCode::protocol_error}),
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
                 [] { return encode_result({.sequence_id = 777, .layer = 0, .expert = 0, .y = std::vector<float>(32)}, 32, false); }},
        BadFrame{"GroupResultOfANeverIssuedId",
                 [] {
                     return encode_group_result({.sequence_id = 12345,
                                                 .shape = {.num_tokens = 1, .hidden_dim = 32, .num_pairs = 1, .num_experts = 1},
                                                 .y = std::vector<float>(32)}, false);
                 }},
        BadFrame{"ReadyOfAnUnknownExpert", [] { return encode_ready({{.layer = 0, .expert = 999}}); }},
        BadFrame{"Assign", [] { return encode_assign({{.layer = 0, .expert = 0}}); }},
        BadFrame{"Cancel", [] { return encode_cancel(1); }},
        BadFrame{"SecondHello", [] { return encode_hello(good_hello()); }},
        BadFrame{"Proof", [] { return text_frame(FrameType::proof, "x"); }},
        BadFrame{"BusyOfThreeBytes", [] { return text_frame(FrameType::busy, "abc"); }},
        BadFrame{"ErrorWithoutJson", [] { return text_frame(FrameType::error, "boom"); }}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(SwarmSessionTest, TheHubIsFullBeyondWorkersMax) {
    SimOptions options = no_workers();
    options.swarm.workers_max = 1;
    SimSwarm swarm(options);
    swarm.join();
    const WorkerId second = swarm.connect(false);
    EXPECT_EQ(swarm.closed_with(second), CloseCode::going_away);
}

TEST(SwarmSessionTest, ASwarmOfFiveMessagePeersServes) {
    SimSwarm swarm(no_workers());
    const WorkerId peer = swarm.join(Peer::published);
    ASSERT_TRUE(swarm.run_until_ready());
    EXPECT_TRUE(swarm.core().worker(peer)->published_only);
    for (std::uint32_t i = 0; i < 12; ++i) {
        const RoundId round = swarm.submit({.layer = i % 3, .num_tokens = 1 + i % 4});
        ASSERT_TRUE(swarm.run_until_idle());
        EXPECT_EQ(swarm.outcome(round).y, swarm.outcome(round).want);
        EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{peer});
    }
    for (const Bytes& frame : swarm.frames_to(peer)) {
        const auto header = decode_frame_header(frame);
        ASSERT_TRUE(header.ok());
        EXPECT_LE(static_cast<int>(header->type), 5) << frame_type_name(header->type);
    }
    EXPECT_TRUE(swarm.violations().empty());
}

TEST(SwarmSessionTest, AMixedSwarmAnswersTheSame) {
    SimSwarm swarm(no_workers());
    swarm.join(Peer::published, "10.0.0.1");
    swarm.join(Peer::ours, "10.0.1.1");
    ASSERT_TRUE(swarm.run_until_ready());
    for (int i = 0; i < 10; ++i) {
        const RoundId round = swarm.submit({.num_tokens = 3});
        ASSERT_TRUE(swarm.run_until_idle());
        EXPECT_EQ(swarm.outcome(round).y, swarm.outcome(round).want);
    }
    EXPECT_TRUE(swarm.violations().empty());
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

TEST(SwarmSessionTest, DrainSaysSoServesOnAndClosesAtItsDeadline) {
    SimSwarm swarm(no_workers());
    const WorkerId worker = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.drain(3s);
    const RoundId round = swarm.submit();           // streams that fit end whole
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{worker});
    const auto header = decode_frame_header(swarm.frames_to(worker).at(swarm.frames_to(worker).size() - 2));
    EXPECT_EQ(header->type, FrameType::drain);
    const WorkerId newcomer = swarm.connect(false);
    EXPECT_EQ(swarm.closed_with(newcomer), CloseCode::going_away);
    swarm.run_for(3s);
    EXPECT_EQ(swarm.closed_with(worker), CloseCode::going_away);
}

TEST(SwarmSessionTest, AWorkerThatDrainsGetsNoNewWork) {
    SimSwarm swarm(no_workers());
    const WorkerId leaver = swarm.join(), stayer = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.say(leaver, encode_drain(1000));
    for (int i = 0; i < 6; ++i) {
        const RoundId round = swarm.submit();
        ASSERT_TRUE(swarm.run_until_idle());
        EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{stayer});
    }
}

}  // namespace
}  // namespace moex::sim
