// Experts on demand: a worker that holds more experts than it has slots answers calls of all
// experts.
#include <algorithm>

#include "tests/web-worker/slots/cache_stage.h"
#include "web-worker/slots/hint_trial.h"
#include "web-worker/slots/transfer_choice.h"

namespace moex {
namespace {

TEST(SlotCacheTest, MoreExpertsThanSlotsAreHeldAndAllAreAnswered) {
    for (const EvictionPolicy policy : policies) {
        CacheStage stage(policy);
        EXPECT_EQ(stage.reported_bytes / stage_blob_bytes, num_held)
            << "HELLO reports the capacity";
        ASSERT_GT(stage.slots, 2u);
        ASSERT_LT(stage.slots, num_held / 2);
        EXPECT_EQ(stage.status().units_ready, num_held);

        for (int turn = 0; turn < 2; ++turn)
            for (const std::uint16_t expert : first_experts(num_held)) stage.ask(expert);

        stage.run_until_shown();
        const SlotCounters& counters = stage.status().slots;
        EXPECT_EQ(counters.asked, 2u * num_held);
        EXPECT_GE(counters.loads, num_held - stage.slots);
        EXPECT_EQ(counters.resident + counters.loads, counters.asked);
        EXPECT_LE(stage.status().device.buffer_bytes, limit_bytes);
        EXPECT_EQ(stage.status().errors, 0u);
    }
}

// Each eviction policy keeps the experts that its name says: the recently used (lru), the
// frequently used (lfu), or none (cacheless).
TEST(SlotCacheTest, EachPolicyKeepsTheExpertsOfItsName) {
    for (const EvictionPolicy policy : policies) {
        CacheStage stage(policy);
        for (int i = 0; i < 3; ++i) stage.ask(60);
        EXPECT_EQ(stage.status().slots.resident, policy == EvictionPolicy::cacheless ? 0u : 2u);

        for (std::uint16_t other = 0; other < stage.slots; ++other)
            stage.ask(static_cast<std::uint16_t>(61 + other));
        const SlotCounters before = stage.status().slots;
        stage.ask(60);
        EXPECT_EQ(stage.resident_since(before), policy == EvictionPolicy::lfu ? 1u : 0u)
            << "others were used later, none as often";
    }
}

TEST(SlotCacheTest, PredictedExpertHasASlotBeforeItsGroup) {
    CacheStage stage;
    stage.hint({90, 91, 500});  // the worker does not hold expert 500
    stage.run_until([&] { return stage.status().slots.prefetched == 2; });

    stage.ask(90);
    stage.ask(91);
    EXPECT_EQ(stage.status().slots.resident, 2u);
    EXPECT_EQ(stage.status().slots.loads, 0u);
    EXPECT_EQ(stage.status().slots.wasted, 0u);
}

// A hub that understands SLOTS gets the slot figures after a heartbeat. The figures include only
// the newest connection.
TEST(SlotCacheTest, ChangedFiguresAreSentAfterAHeartbeat) {
    CacheStage stage(EvictionPolicy::lru, {slots_cap});
    stage.hint({90, 91});
    stage.run_until([&] { return stage.status().slots.prefetched == 2; });
    stage.clock_ms += 7;
    stage.ask(90);
    stage.ask(60);

    stage.give(encode_heartbeat(1));
    const SlotFigures told = decode_slots(stage.next(FrameType::slots)).value();
    EXPECT_EQ(told.slots, stage.slots);
    EXPECT_EQ(told.asked, 2u);
    EXPECT_EQ(told.hits, 1u);
    EXPECT_EQ(told.foreseen, 1u);
    EXPECT_GE(told.lead_us, 7'000u);
    EXPECT_EQ(told.loads, 1u);
    EXPECT_EQ(told.brought, 3u);
    stage.give(encode_heartbeat(2));
    EXPECT_FALSE(stage.has_sent(FrameType::slots)) << "nothing has changed";

    stage.hang_up(1006, "");
    stage.welcome();
    stage.ask(90);
    stage.give(encode_heartbeat(3));
    EXPECT_EQ(decode_slots(stage.next(FrameType::slots))->asked, 1u);
}

TEST(SlotCacheTest, OlderHubGetsNoFigures) {
    CacheStage stage;
    stage.ask(60);
    stage.give(encode_heartbeat(1));
    (void)stage.next(FrameType::heartbeat);
    EXPECT_FALSE(stage.has_sent(FrameType::slots));
}

// A group that waits for experts goes before hints. Hints that waited after it are dropped after
// their deadline.
TEST(SlotCacheTest, AHintThatIsLaterThanItsDeadlineIsDroppedAndCounted) {
    for (const std::uint16_t deadline_ms : {0, 50}) {
        CacheStage stage(EvictionPolicy::lru, {slots_cap, tiers_cap});
        const SlotCounters& counters = stage.status().slots;
        stage.hint({92}, 50);
        stage.run_until([&] { return counters.prefetched == 1; });

        stage.hold_fetches = true;
        stage.give(encode_group_dispatch(group_of(++stage.asked, 60), false));
        stage.hint({90, 91}, deadline_ms);
        stage.clock_ms += 51;
        stage.hold_fetches = false;
        for (auto& arrive : std::exchange(stage.held_fetches, {})) arrive();
        (void)stage.next(FrameType::group_result);
        stage.run_until([&] { return counters.expired + counters.prefetched == 3; });
        EXPECT_EQ(counters.expired, deadline_ms > 0 ? 2u : 0u);

        stage.give(encode_heartbeat(1));
        EXPECT_EQ(decode_slots(stage.next(FrameType::slots))->expired, counters.expired);
        stage.ask(90);
    }
}

TEST(SlotCacheTest, HelloReportsSlotsAndStoreSeparately) {
    Stage stage(limit_bytes, {.keep_bytes = num_held * stage_blob_bytes});
    stage.core->start();
    const DeviceInfo told = decode_hello(stage.next(FrameType::hello))->device;
    EXPECT_EQ(told.store_bytes, num_held * stage_blob_bytes);
    EXPECT_GT(told.slot_bytes, 0u);
    EXPECT_LT(told.slot_bytes, limit_bytes);
    EXPECT_EQ(told.budget_bytes, told.store_bytes) << "the budget for a hub that knows no store";

    Stage plain(limit_bytes);
    plain.core->start();
    EXPECT_EQ(decode_hello(plain.next(FrameType::hello))->device.store_bytes, 0u);
}

TEST(SlotCacheTest, ReadyReportsTiersToAHubThatReadsThem) {
    for (const bool remembers : {false, true}) {
        Stage stage(limit_bytes, {.keep_bytes = num_held * stage_blob_bytes});
        stage.remembers = remembers;
        stage.hub_caps.push_back(tiers_cap);
        stage.limits = wide_limits;
        stage.core->start();
        stage.welcome();
        stage.give(encode_assign(units_of(first_experts(num_held))));

        std::map<UnitTier, std::uint32_t> found;
        for (std::uint32_t told = 0; told < num_held;) {
            const Ready ready = decode_ready(stage.next(FrameType::ready), stage.limits).value();
            ASSERT_EQ(ready.tiers.size(), ready.units.size());
            for (const UnitTier tier : ready.tiers) ++found[tier];
            told += static_cast<std::uint32_t>(ready.units.size());
        }
        stage.run_until_shown();
        EXPECT_EQ(found[UnitTier::slot], stage.status().units_resident);
        EXPECT_EQ(found[remembers ? UnitTier::memory : UnitTier::store],
                  num_held - stage.status().units_resident);
    }
}

// The hint wakes the GPU even if every predicted expert has a slot already, because a call of that
// layer arrives soon.
TEST(SlotCacheTest, AHintWakesTheGpuForTheCallThatIsToCome) {
    CacheStage stage;
    EXPECT_TRUE(stage.device->expected_ms.empty());
    stage.hint({90});
    stage.hint({90, 91}, 60);
    stage.hint({});
    EXPECT_EQ(stage.device->expected_ms, (std::vector<double>{40, 30}));
}

// A prediction for an earlier token does not count as a prediction for the present token.
TEST(SlotCacheTest, OldHintIsNotCountedAsAPrediction) {
    CacheStage stage;
    for (const std::uint16_t expert : {90, 91, 92}) stage.hint({expert});
    stage.run_until([&] { return stage.status().slots.prefetched == 3; });
    for (const std::uint16_t expert : {90, 91, 92, 92}) stage.ask(expert);
    EXPECT_EQ(stage.status().slots.resident, 4u);
    EXPECT_EQ(stage.status().slots.foreseen, 2u) << "91 and 92, each once";
}

// The hints predict more experts than there are slots, and every prediction is wrong.
TEST(SlotCacheTest, WrongHintsCostNoAnswer) {
    for (const EvictionPolicy policy : policies)
        for (const bool remembers : {false, true}) {
            CacheStage stage(policy);
            stage.remembers = remembers;
            for (std::uint16_t turn = 0; turn < 3; ++turn) {
                stage.hint(first_experts(num_held - 1));
                stage.ask(num_held - 1);
                stage.ask(static_cast<std::uint16_t>(90 + turn));
            }
            EXPECT_EQ(stage.status().errors, 0u);
        }
}

// Of the two experts that each hint predicts, the second is never requested. After some hints the
// worker brings only the first expert.
TEST(SlotCacheTest, RankThatIsNeverRightIsNotBrought) {
    CacheStage stage;
    stage.remembers = true;
    constexpr std::uint16_t never = num_held - 1;
    const SlotCounters& now = stage.status().slots;
    std::uint32_t turn = stage.slots;  // experts with lower numbers have slots
    const auto turns = [&](int count) {
        for (; count > 0; --count, ++turn) {
            const auto right = static_cast<std::uint16_t>(turn % never);
            const SlotCounters before = now;
            stage.hint({right, never});
            stage.run_until([&] { return now.prefetched > before.prefetched; });
            stage.ask(right);
        }
    };
    turns(2 * num_held);

    const SlotCounters before = now;
    turns(num_held);
    EXPECT_EQ(now.resident - before.resident, num_held) << "the first has a slot";
    EXPECT_EQ(now.prefetched - before.prefetched, num_held) << "and no other is brought";

    // If a single call requests the second expert of the hint, that expert is brought nevertheless.
    stage.hint({static_cast<std::uint16_t>(turn % never), never});
    stage.give(encode_dispatch(
        {.sequence_id = 1000, .expert = never, .x = std::vector<float>(96), .gates = {0}}, 96,
        false));
    EXPECT_EQ(decode_frame_header(stage.next(FrameType::busy))->sequence_id, 1000u);
    stage.run_until([&] { return now.prefetched == before.prefetched + num_held + 2u; });
}

// Calls with hints take longer than calls without: the worker then ignores hints, even if they are
// right.
struct TimedStage : CacheStage {
    double now_ms() override { return time_ms; }
    double time_ms = 1e6;  // the test sets this clock; timers do not advance it
};
TEST(SlotCacheTest, HintsThatCostMoreThanTheySpareAreIgnored) {
    TimedStage stage;
    stage.remembers = true;
    const SlotCounters& now = stage.status().slots;
    std::uint32_t turn = stage.slots;  // experts with lower numbers have slots
    const auto calls = [&](std::uint32_t count) {
        for (; count > 0; --count, ++turn) {
            const auto expert = static_cast<std::uint16_t>(turn % num_held);
            const SlotCounters before = now;
            stage.hint({expert});
            stage.run_until(
                [&] { return now.ignored > before.ignored || now.prefetched > before.prefetched; });
            stage.time_ms += now.ignored > before.ignored ? 1.0 : 1.3;
            stage.ask(expert);
        }
    };
    calls(HintTrial::pause_min);
    EXPECT_EQ(now.ignored, 0u);
    EXPECT_GT(now.prefetched, HintTrial::pause_min / 2);

    calls(HintTrial::num_stages * HintTrial::stage_calls);
    const SlotCounters before = now;
    calls(num_held);
    EXPECT_EQ(now.ignored - before.ignored, num_held);
    EXPECT_EQ(now.prefetched, before.prefetched);
    EXPECT_EQ(stage.status().errors, 0u);
}

// An expert in this machine's memory is copied from there to a slot.
TEST(SlotCacheTest, ExpertInMemoryIsNotFetched) {
    CacheStage stage;
    stage.remembers = true;
    const int fetches = stage.fetches;
    for (const std::uint16_t expert : first_experts(num_held)) stage.ask(expert);
    EXPECT_GE(stage.status().slots.loads, num_held - stage.slots);

    const SlotCounters before = stage.status().slots;
    stage.hint({3, 5, 7});
    stage.run_until([&] { return stage.status().slots.prefetched == before.prefetched + 3; });
    for (const std::uint16_t expert : {3, 5, 7}) stage.ask(expert);
    EXPECT_EQ(stage.resident_since(before), 3u);
    EXPECT_EQ(stage.status().slots.loads, before.loads);
    EXPECT_EQ(stage.fetches, fetches);
    EXPECT_EQ(stage.status().slots.brought, before.brought + 3);
}

// Does the same as ExpertInMemoryIsNotFetched, but here the GPU copies the experts while kernels
// run. A call is answered correctly whether its expert has a slot, is in flight, or is requested
// just now.
TEST(SlotCacheTest, ExpertCopiedByTheGpuIsReadyWhenUsed) {
    for (const EvictionPolicy policy : policies) {
        CacheStage stage(policy);
        stage.share_memory();
        if (!stage.shared.ok()) GTEST_SKIP() << stage.shared.error().message;
        const std::uint64_t before = stage.device->counters().transfers;
        for (int turn = 0; turn < 3; ++turn) {
            for (const std::uint16_t expert : first_experts(num_held)) {
                const auto next = static_cast<std::uint16_t>((expert + 7) % num_held);
                stage.hint({next, static_cast<std::uint16_t>((next + 1) % num_held)});
                stage.ask(expert);
                stage.ask(next);
            }
        }
        const SlotCounters& counters = stage.status().slots;
        const std::uint64_t loads = counters.loads;
        for (const std::uint16_t expert : first_experts(num_held)) stage.ask(expert);
        stage.run_until([&] { return counters.loads - loads >= num_held - stage.slots; });
        EXPECT_EQ(stage.fetches, num_held) << "one fetch for each, when it was assigned";
        const std::uint64_t transfers = stage.device->counters().transfers - before;
        EXPECT_GT(transfers, 0u);
        EXPECT_LE(transfers, stage.status().slots.brought) << "in trials the thread copies some";
        EXPECT_EQ(stage.status().errors, 0u);
    }
}

TEST(SlotCacheTest, PrefetchBecomesAwaitedWhenAGroupUsesIt) {
    CacheStage stage;
    stage.share_memory();
    if (!stage.shared.ok()) GTEST_SKIP() << stage.shared.error().message;
    const auto& transfers = stage.device->transfers;
    const auto& awaited = stage.device->awaited;
    const std::uint64_t hinted = stage.status().slots.prefetched;
    stage.hint({40});
    stage.run_until([&] { return stage.status().slots.prefetched > hinted; });
    ASSERT_EQ(transfers.size(), 1u);
    const std::uint64_t first = transfers.begin()->first;
    EXPECT_EQ(transfers.at(first), gpu::TransferKind::prefetch);
    EXPECT_FALSE(awaited.contains(first));

    stage.ask(50);
    ASSERT_EQ(transfers.size(), 2u);
    EXPECT_EQ(transfers.at(first + 1), gpu::TransferKind::awaited);
    EXPECT_TRUE(awaited.contains(first + 1));
    EXPECT_FALSE(awaited.contains(first));
    stage.ask(40);
    EXPECT_TRUE(awaited.contains(first));
    EXPECT_EQ(transfers.size(), 2u);
}

// Trials of the faster copier (transfer_choice.h) run while the worker serves.
TEST(SlotCacheTest, TrialLetsTheGpuCopyInsteadOfTheThread) {
    TimedStage stage;
    stage.share_memory();
    if (!stage.shared.ok()) GTEST_SKIP() << stage.shared.error().message;
    stage.device->others_compute = true;
    std::uint16_t expert = num_held - 1;
    const auto ask_next = [&] {
        stage.time_ms += 1;
        stage.ask(expert = (expert + 1) % num_held);
    };
    stage.ask(expert);  // the first expert is copied: the pause counts groups from here on
    for (std::uint32_t i = 1; i < TransferChoice::pause_min; ++i) ask_next();
    EXPECT_EQ(stage.device->counters().transfers, 0u);
    for (std::uint32_t i = 0; i < 2 * TransferChoice::groups_a_window; ++i) ask_next();
    EXPECT_GE(stage.device->counters().transfers, TransferChoice::groups_a_window - 1);
    EXPECT_LE(stage.device->counters().transfers, TransferChoice::groups_a_window + 1);
    EXPECT_EQ(stage.status().errors, 0u);
}

// The predicted call follows directly after its hint. When it arrives, the copy of its expert may
// be in flight, may be over, or may not have been requested yet.
TEST(SlotCacheTest, ExpertInFlightIsNotBroughtAgain) {
    CacheStage stage;
    stage.share_memory();
    if (!stage.shared.ok()) GTEST_SKIP() << stage.shared.error().message;
    std::uint64_t asked = 0;
    for (std::uint16_t expert = 40; expert < 90; ++expert, ++asked) {
        stage.hint({expert});
        stage.ask(expert);
    }
    const SlotCounters& counters = stage.status().slots;
    EXPECT_EQ(counters.asked, asked);
    EXPECT_LE(counters.resident + counters.late, asked);
    stage.run_until([&] { return counters.brought == asked; });
    EXPECT_EQ(stage.status().errors, 0u);
}

TEST(SlotCacheTest, ReleaseOfAnExpertInFlightFreesItsSlot) {
    CacheStage stage;
    stage.share_memory();
    if (!stage.shared.ok()) GTEST_SKIP() << stage.shared.error().message;
    for (std::uint16_t expert = 40; expert < 60; ++expert) {
        stage.hint({expert});
        stage.give(encode_release(std::vector<Unit>{{0, expert}}));
        stage.ask(static_cast<std::uint16_t>(expert + 20));
    }
    EXPECT_EQ(stage.status().errors, 0u);
}

// The blob is in memory when its group arrives, and has left the memory when the expert is to be
// put into a slot.
TEST(SlotCacheTest, ExpertThatLeftMemoryIsFetched) {
    CacheStage stage;
    stage.remembers = true;
    const int fetches = stage.fetches;
    stage.give(encode_group_dispatch(group_of(1, 90), false));
    EXPECT_EQ(stage.fetches, fetches);
    stage.remembers = false;

    const auto result = decode_group_result(stage.next(FrameType::group_result), stage.limits);
    EXPECT_EQ(result->sequence_id, 1u);
    EXPECT_EQ(stage.fetches, fetches + 1);
}

// The hint also predicts all experts that have slots, so no expert is evicted for a hint.
TEST(SlotCacheTest, AHintFromMemoryWaitsForAFreeSlot) {
    CacheStage stage(EvictionPolicy::cacheless);
    stage.remembers = true;
    stage.hint(first_experts(num_held - 1));
    EXPECT_EQ(stage.status().slots.prefetched, 0u);

    stage.ask(num_held - 1);  // this expert is evicted after its use, and its slot becomes free
    stage.run_until([&] { return stage.status().slots.prefetched == 1; });
    EXPECT_EQ(stage.status().errors, 0u);
}

TEST(SlotCacheTest, AnExpertThatCannotBeReadFailsItsCallAlone) {
    CacheStage stage;
    stage.fetches_failing = stage.fetches + 1;
    stage.give(encode_group_dispatch(group_of(1, 95), false));
    const auto refused = decode_error(stage.next(FrameType::error));
    EXPECT_EQ(refused->sequence_id, 1u);
    EXPECT_EQ(refused->code, "unavailable");
    EXPECT_FALSE(refused->fatal);

    stage.asked = 1;
    stage.ask(95);
    stage.ask(0);
}

TEST(SlotCacheTest, WaitingGroupsAreAnsweredInOrderOrCancelled) {
    CacheStage stage;
    stage.hold_fetches = true;
    stage.give(encode_group_dispatch(group_of(1, 90), false));
    stage.give(encode_group_dispatch(group_of(2, 91), false));
    stage.give(encode_group_dispatch(group_of(3, 0), false));
    stage.give(encode_cancel(2));

    stage.hold_fetches = false;
    for (auto& arrive : std::exchange(stage.held_fetches, {})) arrive();
    std::vector<std::uint32_t> answered;
    for (int i = 0; i < 2; ++i)
        answered.push_back(
            decode_group_result(stage.next(FrameType::group_result), stage.limits)->sequence_id);
    EXPECT_EQ(answered, (std::vector<std::uint32_t>{1, 3}));
}

TEST(SlotCacheTest, GroupOfAnExpertReleasedInFlightIsRefused) {
    CacheStage stage;
    stage.hold_fetches = true;
    stage.give(encode_group_dispatch(group_of(1, 90), false));
    stage.give(encode_release({{0, 90}}));
    EXPECT_EQ(decode_error(stage.next(FrameType::error))->code, "unknown_expert");

    stage.hold_fetches = false;
    for (auto& arrive : std::exchange(stage.held_fetches, {})) arrive();
    stage.asked = 1;
    stage.ask(91);
}

TEST(SlotCacheTest, PauseWithAnExpertInFlightEndsInService) {
    CacheStage stage;
    stage.hold_fetches = true;
    stage.give(encode_group_dispatch(group_of(1, 90), false));
    stage.core->pause();
    stage.hold_fetches = false;
    stage.core->resume();

    stage.hub_caps.push_back("held");
    stage.welcome();
    EXPECT_EQ(decode_units(stage.next(FrameType::ready), stage.limits)->size(), num_held);
    const int fetches = stage.fetches;
    stage.assign(first_experts(num_held));
    EXPECT_EQ(stage.fetches, fetches) << "all experts were held";
    stage.ask(90);
}

TEST(SlotCacheTest, AMovedLimitChangesSlotsAndNotWhatIsHeld) {
    CacheStage stage;
    stage.core->set_budget(250'000);
    EXPECT_TRUE(decode_budget(stage.next(FrameType::budget), stage.limits)->dropped.empty());
    stage.run_until_shown();
    EXPECT_LT(stage.status().units_resident, stage.slots);
    for (const std::uint16_t expert : first_experts(num_held)) stage.ask(expert);

    stage.core->set_budget(3'000'000);  // room for all
    stage.run_until_shown();
    for (int turn = 0; turn < 2; ++turn)
        for (const std::uint16_t expert : first_experts(num_held)) stage.ask(expert);
    stage.run_until_shown();
    EXPECT_EQ(stage.status().units_resident, num_held);
}

TEST(SlotCacheTest, LimitWithoutRoomForATokensExpertsIsReported) {
    Stage stage(16'000, {.keep_bytes = num_held * stage_blob_bytes});
    stage.limits = wide_limits;
    stage.core->start();
    stage.welcome();
    stage.run_until_phase(WorkerPhase::failed);
    EXPECT_NE(stage.status().detail.find("has room for 1 experts"), std::string::npos)
        << stage.status().detail;
}

}  // namespace
}  // namespace moex
