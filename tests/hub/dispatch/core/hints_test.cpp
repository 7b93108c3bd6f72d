// Tests hints: predictions of the experts of a later layer are sent to the workers that can use
// them.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

// Connects `worker` with `caps` and reports READY for all its assigned units. Returns these units.
std::set<Unit> hold_all(SimSwarm& swarm, WorkerId worker, std::vector<std::string> caps) {
    Hello hello;
    hello.token = "sim-token";
    hello.device.budget_bytes = 1 << 20;
    hello.caps = std::move(caps);
    swarm.say(worker, encode_hello(hello));
    swarm.run_for(1s);

    std::set<Unit> held;
    for (const Bytes& frame : swarm.frames_to(worker)) {
        const auto told = decode_assign(frame, swarm.core().options().limits);
        if (!told.ok()) continue;
        for (const AssignedUnit& unit : told->units) held.insert({unit.layer, unit.expert});
    }
    swarm.say(worker, encode_ready({held.begin(), held.end()}));
    return held;
}

TEST(SwarmHintsTest, HintsGoToOnDemandWorkersOnly) {
    SimOptions options{.num_workers = 0, .seed = 3, .log = true};
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    SwarmCore& core = swarm.core();
    const WireLimits& limits = core.options().limits;
    const WorkerId plain = swarm.connect(false, "10.0.0.1");
    hold_all(swarm, plain, {"group"});
    EXPECT_FALSE(core.wants_hints());
    const WorkerId on_demand = swarm.connect(false, "10.1.0.1");
    const std::set<Unit> held = hold_all(swarm, on_demand, {"group", on_demand_cap});
    EXPECT_TRUE(core.wants_hints());
    ASSERT_FALSE(held.empty());

    std::vector<ExpertHint> hints;
    std::set<Unit> expected;
    for (std::uint16_t expert = 0; expert < limits.num_experts; ++expert) {
        hints.push_back({.layer = held.begin()->layer, .expert = expert, .confidence = 9});
        if (held.contains({held.begin()->layer, expert}))
            expected.insert({held.begin()->layer, expert});
    }
    std::vector<SwarmAction> actions;
    core.on_hints(swarm.now(), hints, actions);

    std::set<Unit> told;
    for (const SwarmAction& action : actions) {
        const auto* sent = std::get_if<SendFrame>(&action);
        if (sent == nullptr) continue;
        const auto units = decode_prefetch(sent->frame.head(), limits);
        if (!units.ok()) continue;
        EXPECT_EQ(sent->worker, on_demand);
        for (const PrefetchHint& hint : *units) {
            EXPECT_EQ(hint.confidence, 9);
            told.insert(hint.unit);
        }
    }
    EXPECT_EQ(told, expected);
    EXPECT_EQ(core.counters().hints_sent, expected.size());

    swarm.leave(on_demand);
    EXPECT_FALSE(core.wants_hints());
}

// A hint's deadline is four times the predicted time until its layer. The hub can predict that time
// once a round has shown how long a layer takes.
TEST(SwarmHintsTest, DeadlinesFollowTheLeadInLayers) {
    SimOptions options{.num_workers = 0, .seed = 3, .num_layers = 4};
    options.swarm.local_fallback = false;
    options.swarm.checks.on = false;
    SimSwarm swarm(options);
    const WorkerId worker = swarm.join_as({.compute = 60ms, .slots = 32}, "10.1.0.1");
    ASSERT_TRUE(swarm.run_until_ready());

    const auto deadline = [&](std::uint16_t layer, std::uint16_t given = 0) {
        const ExpertHint hint{.layer = layer, .expert = 1, .deadline_ms = given};
        std::vector<SwarmAction> actions;
        swarm.core().on_hints(swarm.now(), {&hint, 1}, actions);
        for (const SwarmAction& action : actions)
            if (const auto* sent = std::get_if<SendFrame>(&action); sent->worker == worker)
                return decode_prefetch(sent->frame.head(), swarm.core().options().limits)
                    ->at(0)
                    .deadline_ms;
        return std::uint16_t{9999};
    };
    EXPECT_EQ(deadline(1), 0) << "nothing is known";
    for (int i = 0; i < 3; ++i) {
        const RoundId round = swarm.submit({.layer = 0, .expert_ids = {0, 1, 2, 3}});
        ASSERT_TRUE(swarm.run_until_answered(round));
    }
    EXPECT_GE(deadline(1), 100);
    EXPECT_NEAR(deadline(3), 3 * deadline(1), 3);
    EXPECT_EQ(deadline(1, 7), 7) << "who foresaw it knows";

    const RoundId last = swarm.submit({.layer = 3, .expert_ids = {0, 1, 2, 3}});
    ASSERT_TRUE(swarm.run_until_answered(last));
    EXPECT_NEAR(deadline(1), 2 * deadline(0), 3) << "of the next token";
    EXPECT_EQ(deadline(2), deadline(0)) << "it comes too late, so that one layer's time is enough";
}

SwarmOptions on_their_own() {
    SwarmOptions options;
    options.local_fallback = false;
    return options;
}

TEST(SwarmTiersTest, TiersInReadyAreShownAndOptional) {
    SimSwarm swarm({.num_workers = 0, .seed = 3, .swarm = on_their_own(), .log = true});
    const WorkerId worker = swarm.connect(false, "10.1.0.1");
    const std::set<Unit> held = hold_all(swarm, worker, {"group", on_demand_cap});
    swarm.run_for(100ms);
    using Tiers = std::array<std::uint32_t, num_unit_tiers>;
    EXPECT_EQ(swarm.core().workers()[0].tiers, (Tiers{0, 0, 0}));

    const std::vector<Unit> units(held.begin(), held.end());
    std::vector<UnitTier> tiers(units.size(), UnitTier::store);
    tiers[0] = UnitTier::slot;
    tiers[1] = UnitTier::memory;
    // a second READY does not count the units again
    for (int i = 0; i < 2; ++i) swarm.say(worker, encode_ready(units, tiers));
    swarm.run_for(100ms);
    const auto num_stored = static_cast<std::uint32_t>(units.size() - 2);
    EXPECT_EQ(swarm.core().workers()[0].tiers, (Tiers{num_stored, 1, 1}));
}

TEST(SwarmTiersTest, NearestTierOfAllHoldersCounts) {
    SimSwarm swarm({.num_workers = 2, .seed = 3, .swarm = on_their_own()});
    ASSERT_TRUE(swarm.run_until_ready());
    const SwarmCore& core = swarm.core();
    const WorkerId one = core.workers()[0].id, two = core.workers()[1].id;
    std::vector<Unit> shared;  // units that both workers hold
    std::vector<std::size_t> places;
    const std::vector<std::uint16_t> replicas = core.replicas();
    const std::uint32_t num_experts = core.options().limits.num_experts;
    for (std::size_t place = 0; place < replicas.size(); ++place) {
        if (replicas[place] != 2) continue;
        places.push_back(place);
        shared.push_back({static_cast<std::uint16_t>(place / num_experts),
                          static_cast<std::uint16_t>(place % num_experts)});
    }
    ASSERT_FALSE(shared.empty());

    const auto expect_all = [&](std::optional<UnitTier> wanted) {
        const auto tiers = core.tiers();
        ASSERT_EQ(tiers.size(), replicas.size());
        for (const std::size_t place : places) EXPECT_EQ(tiers[place], wanted) << place;
    };
    const auto say = [&](WorkerId worker, UnitTier tier) {
        swarm.say(worker, encode_ready(shared, std::vector(shared.size(), tier)));
        swarm.run_for(100ms);
    };
    expect_all(UnitTier::slot);  // the worker reported no tier, so its units count as in memory
    say(one, UnitTier::store);
    expect_all(UnitTier::slot);
    say(two, UnitTier::memory);
    expect_all(UnitTier::memory);
    swarm.leave(two);
    expect_all(UnitTier::store);
    swarm.leave(one);
    expect_all(std::nullopt);
}

// Two workers with memory for all units report counters of expert loads; then one worker leaves.
TEST(SwarmSlotsTest, CountersAreAddedOverWorkersAndConnections) {
    SimSwarm swarm({.num_workers = 2, .seed = 3, .swarm = on_their_own()});
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId one = swarm.core().workers()[0].id, two = swarm.core().workers()[1].id;
    swarm.say(one, encode_slots({.slots = 7, .asked = 10, .hits = 6, .late = 1}));
    swarm.say(one, encode_slots({.slots = 7, .asked = 30, .hits = 16, .late = 1, .wasted = 2}));
    swarm.say(two, encode_slots({.asked = 5, .loads = 2, .load_us = 900}));

    const SlotFigures& all = swarm.core().counters().slots;
    EXPECT_EQ(all.asked, 35u);
    EXPECT_EQ(all.misses(), 19u);
    EXPECT_EQ(all.late, 1u);
    EXPECT_EQ(all.wasted, 2u);
    EXPECT_EQ(all.load_us, 900u);
    EXPECT_EQ(swarm.core().workers()[0].slots.slots, 7u);

    swarm.leave(one);
    EXPECT_EQ(swarm.core().counters().slots.asked, 35u);
}

TEST(SwarmSlotsTest, ACounterThatShrinksEndsTheConnection) {
    SimSwarm swarm({.num_workers = 2, .seed = 3, .swarm = on_their_own()});
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId liar = swarm.core().workers()[0].id;
    swarm.say(liar, encode_slots({.asked = 10, .hits = 6}));
    swarm.say(liar, encode_slots({.asked = 10, .hits = 5}));
    EXPECT_EQ(swarm.core().counters().bad_frames, 1u);
    ASSERT_EQ(swarm.core().workers().size(), 1u);
    EXPECT_NE(swarm.core().workers()[0].id, liar);
}

// The result of decoding tokens through all layers. The workers have memory for a few experts only.
struct Decoding {
    Duration took{};
    std::uint64_t missed = 0;
};
using Route = std::vector<std::uint16_t>;
// A function that returns the hints to send while the round of a layer is in flight. Its arguments
// are the layer, and the experts that the next layer will request.
using Foresee = std::function<std::vector<ExpertHint>(std::uint32_t layer, const Route& next)>;

std::vector<ExpertHint> hints_of(std::uint32_t layer, const Route& experts) {
    std::vector<ExpertHint> hints;
    for (const std::uint16_t expert : experts)
        hints.push_back({.layer = static_cast<std::uint16_t>(layer), .expert = expert});
    return hints;
}

Decoding decode(const Foresee& foresee) {
    SimOptions options{.num_workers = 0, .seed = 5, .num_layers = 4};
    options.swarm.local_fallback = false;
    options.swarm.rounding.deterministic = true;
    SimSwarm swarm(options);
    const WorkerProfile profile{.slots = 8, .load = 2ms};
    const WorkerId workers[] = {swarm.join_as(profile, "10.0.0.1"),
                                swarm.join_as(profile, "10.1.0.1")};
    EXPECT_TRUE(swarm.run_until_ready());

    constexpr std::uint32_t num_tokens = 25;
    std::mt19937 random(7);
    std::vector<Route> routes(num_tokens * options.num_layers + 1);
    for (Route& route : routes) {
        std::set<std::uint16_t> chosen;
        while (chosen.size() < options.top_k)
            chosen.insert(static_cast<std::uint16_t>(random() % options.num_experts));
        route.assign(chosen.begin(), chosen.end());
    }

    Decoding decoding;
    for (std::size_t i = 0; i + 1 < routes.size(); ++i) {
        const auto layer = static_cast<std::uint32_t>(i % options.num_layers);
        const RoundId round = swarm.submit({.layer = layer, .expert_ids = routes[i]});
        swarm.hint(foresee(layer, routes[i + 1]));
        EXPECT_TRUE(swarm.run_until_answered(round)) << "round " << i;

        const RoundOutcome& outcome = swarm.outcome(round);
        EXPECT_EQ(outcome.y, outcome.want) << "round " << i;
        decoding.took += outcome.done_at - outcome.asked_at;
        swarm.run_for(5ms);  // time that the hub needs for attention
    }
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
    EXPECT_EQ(swarm.core().counters().removed, 0u);
    for (const WorkerId worker : workers) decoding.missed += swarm.experts_missed(worker);
    return decoding;
}

TEST(SwarmHintsTest, BadHintsCostTimeButNoAnswer) {
    constexpr std::uint32_t num_layers = 4, num_experts = 16;
    const Decoding without = decode([](std::uint32_t, const Route&) { return hints_of(0, {}); });
    const Decoding right = decode([](std::uint32_t layer, const Route& next) {
        return hints_of((layer + 1) % num_layers, next);
    });
    EXPECT_LT(right.missed, without.missed / 2);
    EXPECT_LT(right.took, without.took);

    // Hint the wrong experts of the next layer, then the experts of the round in flight, then all
    // units.
    const Decoding wrong = decode([](std::uint32_t layer, const Route& next) {
        Route others;
        for (std::uint16_t expert = 0; expert < num_experts; ++expert)
            if (std::find(next.begin(), next.end(), expert) == next.end()) others.push_back(expert);
        return hints_of((layer + 1) % num_layers, others);
    });
    Route before;
    const Decoding late = decode([&](std::uint32_t layer, const Route& next) {
        return hints_of(layer, std::exchange(before, next));
    });
    const Decoding everything = decode([](std::uint32_t, const Route&) {
        std::vector<ExpertHint> all;
        for (std::uint32_t i = 0; i < 20 * num_layers * num_experts; ++i)
            all.push_back({.layer = static_cast<std::uint16_t>(i / num_experts % num_layers),
                           .expert = static_cast<std::uint16_t>(i % num_experts),
                           .confidence = 255});
        return all;
    });
    for (const Decoding& bad : {wrong, late, everything}) EXPECT_GT(bad.took, right.took);
}

// The protocol has no frame in which a worker sends hints. A worker that sends the hub's frame for
// hints is disconnected for a protocol error, and the answers of other workers do not change.
TEST(SwarmHintsTest, WorkerThatSendsHintsIsDisconnected) {
    SimOptions options{.num_workers = 1, .seed = 9};
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    const WorkerId liar = swarm.join_as({.slots = 8}, "10.1.0.1");
    ASSERT_TRUE(swarm.run_until_ready());

    swarm.say(liar, encode_prefetch(1, {{.unit = {0, 1}, .deadline_ms = 0, .confidence = 255}}));
    ASSERT_TRUE(swarm.run_until_idle());
    EXPECT_EQ(swarm.closed_with(liar), CloseCode::protocol_error);
    for (std::uint32_t layer = 0; layer < options.num_layers; ++layer) {
        const RoundId round = swarm.submit({.layer = layer});
        EXPECT_TRUE(swarm.run_until_answered(round));
        EXPECT_FALSE(swarm.outcome(round).wrong);
    }
    EXPECT_TRUE(swarm.violations().empty());
}

}  // namespace
}  // namespace moex::sim
