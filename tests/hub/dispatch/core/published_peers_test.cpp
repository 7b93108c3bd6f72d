// Tests peers that know only the five published messages: they send no HELLO, get one call for each
// expert, and report nothing while they download.
#include <gtest/gtest.h>

#include "tests/hub/dispatch/swarm_stage.h"

namespace moex::sim {
namespace {

// A published peer understands no message that requests deterministic rounding.
TEST(PublishedPeersTest, ADeterministicHubTakesNoPublishedPeerThatRounds) {
    SimSwarm swarm(no_workers());
    const WorkerId peer = swarm.connect(true);
    swarm.say(peer, encode_heartbeat(0, R"({"arithmetic":"int8"})"));
    EXPECT_EQ(swarm.closed_with(peer), CloseCode::protocol_error);
}

TEST(PublishedPeersTest, APublishedPeerIsAskedInF16BesideWorkersThatTakeInt8) {
    SimOptions options{.num_workers = 0, .seed = 3, .log = true};
    options.swarm.x_int8 = true;
    SimSwarm swarm(options);
    const WorkerId peer = swarm.join(Peer::published);
    ASSERT_TRUE(swarm.run_until_ready());
    const RoundId round = swarm.submit({.num_tokens = 3});
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_FALSE(swarm.outcome(round).wrong);
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{peer});
}

TEST(PublishedPeersTest, ASwarmOfPublishedPeersServes) {
    SimSwarm swarm(no_workers());
    const WorkerId peer = swarm.join(Peer::published);
    ASSERT_TRUE(swarm.run_until_ready());
    EXPECT_TRUE(swarm.core().worker(peer)->published_peer);

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

// The peer does not accept the dtype of the wire. In an earlier version such a peer was admitted
// and assigned units, but never sent a call, so every round with these units failed.
TEST(PublishedPeersTest, APublishedPeerWithoutTheWiresDtypeIsRefusedByName) {
    SimOptions options = no_workers();
    options.swarm.rounding.wire_dtype = Dtype::bf16;
    SimSwarm swarm(options);
    const WorkerId peer = swarm.join(Peer::published);
    EXPECT_EQ(swarm.closed_with(peer), CloseCode::protocol_error);
    EXPECT_NE(swarm.log().back().find("hub closes"), std::string::npos) << swarm.log().back();
    EXPECT_EQ(swarm.core().coverage().replicas_min, 0u);

    const WorkerId able = swarm.connect(true);
    swarm.say(able,
              encode_heartbeat(0, "{\"device\":{\"backend\":\"sim\"},\"dtypes\":[\"bf16\"]}"));
    EXPECT_FALSE(swarm.closed_with(able).has_value());
}

TEST(PublishedPeersTest, AMixedSwarmAnswersTheSame) {
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

// In an earlier version a published peer was sent calls while it downloaded units. It answered none
// of them in time, and three such calls made it unhealthy.
TEST(PublishedPeersTest, APublishedPeerThatDownloadsIsNotAskedAndStaysHealthy) {
    SimOptions options = no_workers();
    options.swarm.replicas = 1;
    SimSwarm swarm(options);
    const WorkerId peer = swarm.join(Peer::published), other = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.slow_download(peer, 400ms);
    // The peer takes over the units of the worker that leaves: ten seconds of downloads.
    swarm.leave(other);
    for (int i = 0; i < 18; ++i) {
        const RoundId round = swarm.submit();
        swarm.run_for(500ms);
        ASSERT_TRUE(swarm.outcome(round).answer.has_value());
        EXPECT_EQ(swarm.outcome(round).y, swarm.outcome(round).want);
    }
    EXPECT_EQ(swarm.core().counters().timeouts, 0u);

    for (const WorkerEvent& event : swarm.worker_events())
        EXPECT_NE(event.kind, WorkerEvent::Kind::unhealthy) << event.detail;
    ASSERT_TRUE(swarm.run_until_ready());

    const RoundId round = swarm.submit();
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.answered_by(round), std::vector<WorkerId>{peer});
}

TEST(PublishedPeersTest, SilentDownloadingPeerIsDisconnected) {
    SimSwarm swarm(no_workers());
    const WorkerId peer = swarm.join(Peer::published);
    swarm.stall(peer);
    swarm.run_for(9min);
    EXPECT_FALSE(swarm.closed_with(peer).has_value());
    swarm.run_for(3min);
    EXPECT_EQ(swarm.closed_with(peer), CloseCode::going_away);
}

TEST(PublishedPeersTest, CopiesBeyondTheWishAreReleasedWithPublishedPeersToo) {
    SimSwarm swarm(no_workers());
    swarm.join(Peer::published);
    swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.join(Peer::published);
    swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());

    std::uint32_t assigned = 0;
    for (const WorkerView& view : swarm.core().workers()) assigned += view.units_assigned;
    EXPECT_EQ(assigned, 2u * 48u);

    for (int i = 0; i < 12; ++i)
        swarm.submit({.layer = static_cast<std::uint32_t>(i % 3), .num_tokens = 3});
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

}  // namespace
}  // namespace moex::sim
