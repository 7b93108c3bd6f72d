// Tests the operator's orders for one worker: drain (the worker leaves without a gap in service),
// pin (it keeps its units), and ban (it is disconnected and may not return).
#include <gtest/gtest.h>

#include "protocol/json.h"
#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

// Options of a swarm with 48 experts. Every worker has memory for all of them, and there is no
// local backend.
SimOptions options(std::uint32_t replicas) {
    SimOptions options{.num_workers = 0, .seed = 5};
    options.swarm.local_fallback = false;
    options.swarm.replicas = replicas;
    return options;
}
WorkerView view(SimSwarm& swarm, WorkerId worker) { return *swarm.core().worker(worker); }

TEST(OrdersTest, DrainedWorkerHandsOverWithoutAGap) {
    for (const std::uint32_t replicas : {1u, 2u}) {
        SimSwarm swarm(options(replicas));
        const WorkerId one = swarm.join(), two = swarm.join(), three = swarm.join();
        ASSERT_TRUE(swarm.run_until_ready());
        swarm.run_for(30s);
        ASSERT_GT(view(swarm, two).units_ready, 0u);

        ASSERT_TRUE(swarm.order(two, WorkerOrder::drain).ok());
        EXPECT_TRUE(view(swarm, two).drained);
        for (int i = 0; i < 200; ++i) {
            EXPECT_GE(swarm.core().coverage().replicas_min, 1u) << i;
            const RoundId round = swarm.submit({.layer = static_cast<std::uint32_t>(i % 3)});
            ASSERT_TRUE(swarm.run_until_answered(round)) << i;
            EXPECT_FALSE(swarm.outcome(round).wrong);
        }
        swarm.run_for(30s);
        EXPECT_EQ(view(swarm, two).units_assigned, 0u);
        EXPECT_EQ(swarm.closed_with(two), std::nullopt) << "it stays, and may be used again";
        EXPECT_EQ(view(swarm, one).units_ready + view(swarm, three).units_ready, 48 * replicas);

        const std::uint64_t asked = view(swarm, two).groups_sent;
        for (int i = 0; i < 20; ++i) ASSERT_TRUE(swarm.run_until_answered(swarm.submit()));
        EXPECT_EQ(view(swarm, two).groups_sent, asked);

        ASSERT_TRUE(swarm.order(two, WorkerOrder::use).ok());
        swarm.run_for(60s);
        EXPECT_GT(view(swarm, two).units_ready, 0u);
        EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
    }
}

TEST(OrdersTest, UnplaceableUnitsStayUntilAWorkerJoins) {
    SimSwarm swarm(options(1));
    const WorkerId alone = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    ASSERT_TRUE(swarm.order(alone, WorkerOrder::drain).ok());
    swarm.run_for(30s);
    EXPECT_EQ(view(swarm, alone).units_ready, 48u);
    EXPECT_TRUE(swarm.run_until_answered(swarm.submit()));

    const WorkerId other = swarm.join();
    swarm.run_for(60s);
    EXPECT_EQ(view(swarm, other).units_ready, 48u);
    EXPECT_EQ(view(swarm, alone).units_assigned, 0u);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

TEST(OrdersTest, AnOrderHoldsForTheKeyOverReconnectsAndMemoryLimits) {
    SimSwarm swarm(options(1));
    const WorkerId before = swarm.join(Peer::ours, "10.0.0.2", "tab");
    const WorkerId other = swarm.join();
    ASSERT_TRUE(swarm.run_until_ready());
    ASSERT_TRUE(swarm.order(before, WorkerOrder::drain).ok());
    ASSERT_TRUE(swarm.order(before, WorkerOrder::pin).ok());
    swarm.run_for(30s);

    swarm.leave(before);
    const WorkerId after = swarm.join(Peer::ours, "10.0.0.2", "tab");
    swarm.run_for(30s);
    swarm.resize(after, 20);
    swarm.run_for(30s);
    EXPECT_TRUE(view(swarm, after).drained);
    EXPECT_TRUE(view(swarm, after).pinned);
    EXPECT_EQ(view(swarm, after).units_assigned, 0u);
    EXPECT_EQ(view(swarm, other).units_ready, 48u);

    ASSERT_TRUE(swarm.order(after, WorkerOrder::use).ok());
    ASSERT_TRUE(swarm.order(after, WorkerOrder::unpin).ok());
    swarm.run_for(60s);
    EXPECT_FALSE(view(swarm, after).drained);
    EXPECT_FALSE(view(swarm, after).pinned);
    EXPECT_GT(view(swarm, after).units_ready, 0u);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

TEST(OrdersTest, UnitsOfAPinnedWorkerDoNotMove) {
    for (const bool pins : {false, true}) {
        SimSwarm swarm(options(1));
        const WorkerId keeper = swarm.join();
        ASSERT_TRUE(swarm.run_until_ready());
        ASSERT_EQ(view(swarm, keeper).units_ready, 48u);
        if (pins) {
            ASSERT_TRUE(swarm.order(keeper, WorkerOrder::pin).ok());
        }
        const WorkerId newcomer = swarm.join();
        swarm.run_for(60s);
        EXPECT_EQ(view(swarm, keeper).units_ready == 48u, pins);
        EXPECT_EQ(view(swarm, newcomer).units_ready == 0u, pins);
        EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
    }
}

TEST(OrdersTest, ABannedWorkerIsOutAndItsKeyWithIt) {
    for (const bool checks : {false, true}) {
        SimOptions with = options(1);
        with.swarm.checks.on = checks;
        SimSwarm swarm(with);
        const WorkerId bad = swarm.join(Peer::ours, "10.0.0.2", "bad");
        swarm.join(Peer::ours, "10.0.0.2", "good");
        ASSERT_TRUE(swarm.run_until_ready());
        ASSERT_TRUE(swarm.order(bad, WorkerOrder::ban).ok());
        swarm.run_for(1s);
        EXPECT_EQ(swarm.closed_with(bad), CloseCode::policy);

        const WorkerId again = swarm.join(Peer::ours, "10.0.0.2", "bad");
        swarm.run_for(1s);
        EXPECT_EQ(swarm.closed_with(again), CloseCode::policy);
        EXPECT_TRUE(swarm.run_until_answered(swarm.submit()));
    }
}

// WELCOME names the hub and the others; a worker that reads HUBS may be asked to join one of them.
TEST(OrdersTest, AWorkerThatReadsHubsIsAskedToMove) {
    SimOptions with_fleet = options(1);
    with_fleet.log = true;
    const HubPlace other{"bbbbbbbb", "https://b.example"};
    with_fleet.swarm.fleet = [&] { return FleetPlaces{"aaaaaaaa", {other}}; };
    SimSwarm swarm(with_fleet);
    const auto join = [&](bool reads) {
        Hello hello;
        hello.token = "sim-token";
        hello.device.budget_bytes = 1 << 20;
        if (reads) hello.caps.push_back(hubs_cap);
        const WorkerId worker = swarm.connect(false);
        swarm.say(worker, encode_hello(hello));
        return worker;
    };
    std::vector<SwarmAction> actions;
    const WorkerId reads = join(true), older = join(false);
    const Bytes frame = swarm.frames_to(reads).at(0);
    const Json welcome = Json::parse(as_text_view(ByteView(frame).subspan(frame_header_bytes)));
    EXPECT_EQ(welcome["hub"], "aaaaaaaa");
    EXPECT_EQ(welcome["hubs"][0]["id"], other.id);
    EXPECT_EQ(welcome["hubs"][0]["address"], other.address);
    EXPECT_TRUE(view(swarm, reads).reads_hubs);
    EXPECT_FALSE(view(swarm, older).reads_hubs);

    SwarmCore& core = swarm.core();
    ASSERT_TRUE(core.on_hubs(swarm.now(), reads, {{other}, true}, actions).ok());
    ASSERT_EQ(actions.size(), 1u);
    const auto& sent = std::get<SendFrame>(actions[0]);
    EXPECT_EQ(sent.worker, reads);
    EXPECT_EQ(decode_hubs(sent.frame.head()).value(), (HubsChange{{other}, true}));
    EXPECT_EQ(core.on_hubs(swarm.now(), older, {}, actions).error().code, ErrorCode::unsupported);
    EXPECT_EQ(core.on_hubs(swarm.now(), 999, {}, actions).error().code, ErrorCode::not_found);
}

TEST(OrdersTest, OrderForAnUnknownOrKeylessWorkerIsRefused) {
    SimSwarm swarm(options(1));
    EXPECT_EQ(swarm.order(77, WorkerOrder::drain).error().code, ErrorCode::not_found);
    const WorkerId silent = swarm.connect(true);
    EXPECT_EQ(swarm.order(silent, WorkerOrder::pin).error().code, ErrorCode::not_found);

    const WorkerId keyless = swarm.connect(false);
    Hello hello;
    hello.token = "sim-token";
    hello.device.budget_bytes = 72'000;
    hello.caps = {"group"};
    swarm.say(keyless, encode_hello(hello));
    EXPECT_EQ(swarm.order(keyless, WorkerOrder::ban).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(swarm.closed_with(keyless), std::nullopt);
    EXPECT_TRUE(swarm.order(keyless, WorkerOrder::drain).ok());
}

}  // namespace
}  // namespace moex::sim
