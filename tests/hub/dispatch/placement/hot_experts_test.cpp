// Tests the extra copies of hot experts, which are requested or predicted more often than others:
// how many experts get an extra copy, for how long, and in which order.
#include "hub/dispatch/placement/hot_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

constexpr TimePoint start = TimePoint{} + 1h;

HotExpertsOptions some_hot() {
    return {.copies_max = 2, .half_life = 10s, .count_min = 8, .rests_for = 30s};
}

void count(HotExperts& heat, std::uint32_t unit, int times) {
    for (int i = 0; i < times; ++i) heat.count(unit, 1);
}

TEST(HotExpertsTest, UnitsUsedThreeTimesTheMeanAreHotHottestFirst) {
    HotExperts heat(16, some_hot());
    for (std::uint32_t unit = 0; unit < 16; ++unit) count(heat, unit, 10);
    count(heat, 3, 60), count(heat, 9, 70), count(heat, 12, 80);
    EXPECT_EQ(heat.look(start, {}).hot, (std::vector<std::uint32_t>{12, 9})) << "two at most";
    count(heat, 0, 1);
    EXPECT_EQ(heat.look(start, {12}).hot, (std::vector<std::uint32_t>{9})) << "one has a copy";
}

TEST(HotExpertsTest, FewRequestsMakeNothingHot) {
    HotExperts heat(16, some_hot());
    count(heat, 3, 7);
    EXPECT_TRUE(heat.look(start, {}).hot.empty());
}

TEST(HotExpertsTest, BetweenHotAndColdNothingHappens) {
    HotExperts heat(16, some_hot());
    for (std::uint32_t unit = 0; unit < 16; ++unit) count(heat, unit, 100);
    count(heat, 3, 120);  // unit 3 now has a count of 220, and the mean is 107.5
    EXPECT_TRUE(heat.look(start, {}).hot.empty());
    EXPECT_TRUE(heat.look(start, {3}).cold.empty());
    EXPECT_EQ(heat.look(start, {4}).cold, (std::vector<std::uint32_t>{4}));
}

TEST(HotExpertsTest, UnitWithANewCopyGetsNoSecondForAWhile) {
    HotExperts heat(16, some_hot());
    count(heat, 3, 1000);
    ASSERT_EQ(heat.look(start, {}).hot.size(), 1u);
    heat.given(3, start);
    count(heat, 3, 1000);
    EXPECT_TRUE(heat.look(start + 29s, {}).hot.empty());
    EXPECT_EQ(heat.look(start + 30s, {}).hot.size(), 1u);
}

TEST(HotExpertsTest, PollingEndsWhenNoExtraCopyIsLeft) {
    HotExperts heat(16, some_hot());
    EXPECT_FALSE(heat.next_look(start)) << "nothing was counted";
    count(heat, 3, 64);
    EXPECT_EQ(heat.next_look(start), start + 2s);
    EXPECT_FALSE(heat.next_look(start)) << "it waits already";
    EXPECT_TRUE(heat.look(start + 2s, {}).look_again);
    EXPECT_TRUE(heat.look(start + 4s, {3}).look_again);
    // The count of 64 is halved every 10 s, so it is less than 4 after 40 s.
    EXPECT_TRUE(heat.look(start + 38s, {3}).cold.empty());
    EXPECT_EQ(heat.look(start + 44s, {3}).cold, (std::vector<std::uint32_t>{3}));
    EXPECT_FALSE(heat.look(start + 46s, {}).look_again);
    EXPECT_FALSE(heat.next_look(start + 50s));
    count(heat, 3, 1);
    EXPECT_TRUE(heat.next_look(start + 50s)) << "a new request";
}

// ---- extra copies in a placement

// Members join, leave and change their capacity, while units gain and lose extra copies.
TEST(PlacementExtrasTest, ExtraCopyNeverTakesTheRoomOfAFirstCopy) {
    constexpr std::uint32_t num_units = 24;
    std::size_t num_given = 0, num_gone = 0;
    for (std::uint32_t seed = 1; seed <= 60; ++seed) {
        std::mt19937 random(seed);
        const auto below = [&](std::uint32_t n) {
            return static_cast<std::uint32_t>(random() % n);
        };
        std::set<std::pair<WorkerId, std::uint32_t>> loaded;
        const PlacementRule rule = seed % 2 == 0 ? PlacementRule::hash : PlacementRule::fan_out;
        Placement placement({.num_units = num_units,
                             .layer_units = 8,
                             .replicas = 1 + seed % 3,
                             .choice = {.rule = rule},
                             .is_loaded = [&](WorkerId worker, std::uint32_t unit) {
                                 return loaded.contains({worker, unit});
                             }});
        std::set<WorkerId> members;
        for (std::uint32_t step = 0; step < 200; ++step) {
            std::vector<PlacementChange> changes;
            const std::size_t before = placement.extras().size();
            const std::uint32_t what = below(10);
            const WorkerId worker = 1 + below(8);
            if (what < 5) {
                placement.rebalance(1000, changes);
                num_given += placement.add_extra(
                    below(num_units), [&](WorkerId one) { return one != worker; }, changes);
            } else if (what < 7 && members.insert(worker).second) {
                placement.join({.worker = worker,
                                .ring_key = worker,
                                .capacity_units = 4 + below(24),
                                .address_prefix = worker % 3},
                               changes);
            } else if (what < 8 && members.erase(worker) > 0) {
                placement.leave(worker, changes);
            } else if (what < 9 && members.contains(worker)) {
                placement.resize(worker, below(24), {}, changes);
            } else if (!placement.extras().empty()) {
                placement.take_extra(*placement.extras().begin(), changes);
            }
            num_gone += placement.extras().size() < before;
            for (const PlacementChange& change : changes) {
                if (!change.added) loaded.erase({change.worker, change.unit});
                if (change.added && below(2) == 0) loaded.insert({change.worker, change.unit});
            }
            const std::vector<std::string> broken = placement.check();
            ASSERT_TRUE(broken.empty()) << "seed " << seed << " step " << step << ": " << broken[0];
        }
    }
    EXPECT_GT(num_given, 1000u);
    EXPECT_GT(num_gone, 500u);
}

// A unit without a copy must not wait for an extra copy that is still being loaded.
TEST(PlacementExtrasTest, UnloadedExtraIsDroppedOnceAUnitLacksACopy) {
    bool is_loaded = false;
    Placement placement({.num_units = 4,
                         .layer_units = 4,
                         .replicas = 2,
                         .is_loaded = [&](WorkerId, std::uint32_t) { return is_loaded; }});
    std::vector<PlacementChange> changes;
    for (const WorkerId worker : {1, 2, 3, 4})
        placement.join({.worker = worker, .ring_key = worker, .capacity_units = 8}, changes);
    while (placement.unbalanced()) placement.rebalance(100, changes);
    const auto give_one = [&] {
        for (std::uint32_t unit = 0; unit < 4; ++unit)
            if (placement.add_extra(
                    unit, [](WorkerId) { return true; }, changes))
                return true;
        return false;
    };
    for (const bool loaded : {true, false}) {
        is_loaded = loaded;
        ASSERT_TRUE(give_one());
        const std::uint32_t extra = *placement.extras().begin();
        const auto owners = placement.owners(extra);
        // a worker that holds some units, but not the unit with the extra copy
        WorkerId leaver = 0;
        for (const WorkerId worker : {1, 2, 3, 4})
            if (std::ranges::find(owners, worker) == owners.end() && placement.load(worker) > 0)
                leaver = worker;
        ASSERT_NE(leaver, 0u);
        placement.leave(leaver, changes);
        EXPECT_EQ(placement.extras().contains(extra), loaded);
        placement.join({.worker = leaver, .ring_key = leaver, .capacity_units = 8}, changes);
        while (placement.unbalanced()) placement.rebalance(100, changes);
        if (loaded) placement.take_extra(extra, changes);
    }
}

// ---- extra copies in a swarm

// Options of a swarm of four workers with memory for more than one copy of each of the 48 units.
SimOptions roomy(std::uint32_t budget_experts = 20) {
    SimOptions options{.num_workers = 4, .seed = 5, .budget_experts = budget_experts, .log = true};
    options.swarm.replicas = 1;
    options.swarm.local_fallback = false;
    options.swarm.checks.on = false;
    options.swarm.hot = {.copies_max = 3, .half_life = 10s};
    options.check_whole_every = 1;
    return options;
}

constexpr Unit hot_unit{1, 7};

// Runs `num_rounds` rounds, 50 ms apart. Each round requests the hot unit and three other units,
// which alternate.
void ask(SimSwarm& swarm, int num_rounds) {
    for (int i = 0; i < num_rounds; ++i) {
        RoundSpec spec{.layer = hot_unit.layer, .expert_ids = {hot_unit.expert}};
        for (int n = 0; n < 3; ++n)
            spec.expert_ids.push_back(
                static_cast<std::uint16_t>((hot_unit.expert + 1 + (3 * i + n) % 15) % 16));
        ASSERT_TRUE(swarm.run_until_answered(swarm.submit(spec)));
        swarm.run_for(50ms);
    }
}

// Returns how often each unit was listed in frames of type `type`, summed over all workers.
std::map<Unit, int> told(const SimSwarm& swarm, FrameType type, const WireLimits& limits) {
    std::map<Unit, int> times;
    for (const WorkerId worker : swarm.workers_alive())
        for (const Bytes& frame : swarm.frames_to(worker)) {
            if (decode_frame_header(frame)->type != type) continue;
            if (type == FrameType::assign) {
                const auto units = decode_assign(frame, limits);
                for (const AssignedUnit& unit : units->units) ++times[{unit.layer, unit.expert}];
            } else {
                const auto units = decode_units(frame, limits);
                for (const Unit& unit : *units) ++times[unit];
            }
        }
    return times;
}

std::uint32_t copies_of(SimSwarm& swarm, Unit unit) {
    return swarm.core().replicas()[std::size_t{unit.layer} * 16 + unit.expert];
}

TEST(SwarmHeatTest, HotExpertGainsACopyAndLosesItWhenCold) {
    SimSwarm swarm(roomy());
    ASSERT_TRUE(swarm.run_until_ready());
    const WireLimits& limits = swarm.core().options().limits;
    swarm.run_for(10s);  // until the workers' shares are even
    EXPECT_EQ(copies_of(swarm, hot_unit), 1u);
    auto assigned = told(swarm, FrameType::assign, limits),
         released = told(swarm, FrameType::release, limits);

    ask(swarm, 200);
    EXPECT_EQ(copies_of(swarm, hot_unit), 2u);
    EXPECT_EQ(swarm.core().coverage().extra, 1u);
    EXPECT_EQ(swarm.core().coverage().replicas_min, 1u);
    ++assigned[hot_unit];
    EXPECT_EQ(told(swarm, FrameType::assign, limits), assigned) << "one, once";

    swarm.run_for(3min);
    EXPECT_EQ(copies_of(swarm, hot_unit), 1u);
    EXPECT_EQ(swarm.core().coverage().extra, 0u);
    ++released[hot_unit];
    EXPECT_EQ(told(swarm, FrameType::release, limits), released);
    EXPECT_EQ(told(swarm, FrameType::assign, limits), assigned);
    EXPECT_EQ(swarm.core().counters().extras_given, 1u);
    EXPECT_EQ(swarm.core().counters().extras_taken, 1u);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

TEST(SwarmHeatTest, WithoutTheOptionNoCopyIsGiven) {
    SimOptions options = roomy();
    options.swarm.hot.copies_max = 0;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());
    ask(swarm, 200);
    EXPECT_EQ(copies_of(swarm, hot_unit), 1u);
    EXPECT_EQ(swarm.core().counters().extras_given, 0u);
}

TEST(SwarmHeatTest, PredictedExpertGainsACopyBeforeItIsRequested) {
    SimSwarm swarm(roomy());
    ASSERT_TRUE(swarm.run_until_ready());
    for (int i = 0; i < 60; ++i) {
        swarm.hint({{.layer = hot_unit.layer, .expert = hot_unit.expert, .confidence = 255},
                    {.layer = hot_unit.layer, .expert = 2, .confidence = 25}});
        swarm.run_for(100ms);
    }
    EXPECT_EQ(copies_of(swarm, hot_unit), 2u);
    EXPECT_EQ(copies_of(swarm, {hot_unit.layer, 2}), 1u) << "low confidence";
    EXPECT_EQ(swarm.core().counters().rounds, 0u);
}

TEST(SwarmHeatTest, WorkerCountersGiveNoCopy) {
    SimSwarm swarm(roomy());
    const WorkerId liar = swarm.join_as({.slots = 8}, "10.7.0.1");
    ASSERT_TRUE(swarm.run_until_ready());
    for (std::uint64_t i = 1; i <= 60; ++i) {
        swarm.say(liar,
                  encode_slots(
                      {.asked = i << 30, .hits = i << 20, .loads = i << 20, .load_us = i << 40}));
        swarm.run_for(100ms);
    }
    EXPECT_TRUE(swarm.closed_with(liar) == std::nullopt);
    EXPECT_EQ(swarm.core().counters().extras_given, 0u);
}

// The load is switched on and off, in one case faster and in the other cases slower than the counts
// decay.
TEST(SwarmHeatTest, AlternatingLoadCostsAtMostOneDownloadAMinute) {
    for (const Duration pause : {2s, 20s, 45s}) {
        SimSwarm swarm(roomy());
        ASSERT_TRUE(swarm.run_until_ready());
        swarm.run_for(10s);  // until the workers' shares are even
        const WireLimits& limits = swarm.core().options().limits;
        auto before = told(swarm, FrameType::assign, limits);
        const TimePoint begin = swarm.now();
        while (swarm.now() - begin < 10min) {
            ask(swarm, 100);
            swarm.run_for(pause);
        }
        auto after = told(swarm, FrameType::assign, limits);
        EXPECT_LE(after[hot_unit] - before[hot_unit], 11) << "pause " << pause / 1s << " s";
        EXPECT_GE(after[hot_unit] - before[hot_unit], pause > 40s ? 2 : 1);
        before.erase(hot_unit), after.erase(hot_unit);
        EXPECT_EQ(after, before) << "no other expert was moved";
        EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
    }
}

// The 48 units and one extra copy are held by four workers with memory for 16 units each. A worker
// that leaves takes more memory with it than is free.
TEST(SwarmHeatTest, ExpertWithoutACopyTakesTheRoomOfAnExtra) {
    SimSwarm swarm(roomy(16));
    ASSERT_TRUE(swarm.run_until_ready());
    ask(swarm, 200);
    ASSERT_EQ(copies_of(swarm, hot_unit), 2u);

    // Let a worker without a copy of the hot unit leave. The other three workers have memory for
    // exactly 48 units.
    WorkerId leaver = 0;
    const WireLimits& limits = swarm.core().options().limits;
    for (const WorkerId worker : swarm.workers_alive()) {
        bool holds_it = false;
        for (const Bytes& frame : swarm.frames_to(worker))
            if (const auto units = decode_assign(frame, limits); units.ok())
                for (const AssignedUnit& unit : units->units)
                    holds_it |= unit.layer == hot_unit.layer && unit.expert == hot_unit.expert;
        if (!holds_it) leaver = worker;
    }
    ASSERT_NE(leaver, 0u);
    // the worker announces that it leaves, so its place is not kept
    swarm.say(leaver, encode_drain(0));
    ASSERT_TRUE(swarm.run_until_ready());
    EXPECT_EQ(swarm.core().coverage().replicas_min, 1u) << "each of the 48 has a holder";
    EXPECT_EQ(swarm.core().coverage().extra, 0u);
    EXPECT_EQ(copies_of(swarm, hot_unit), 1u);

    ask(swarm, 200);
    EXPECT_EQ(swarm.core().coverage().extra, 0u) << "no memory is free";
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
}

TEST(SwarmHeatTest, TheSameSeedGivesTheSameCopies) {
    std::uint64_t hashes[2];
    for (std::uint64_t& hash : hashes) {
        SimSwarm swarm(roomy());
        ASSERT_TRUE(swarm.run_until_ready());
        ask(swarm, 150);
        swarm.run_for(1min);
        hash = swarm.event_hash();
    }
    EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace moex::sim
