// Groups with more experts than slots, or with many experts without a slot, are computed in passes.
// The answers have the same bits as the answers of a worker with slots for all experts.
#include "tests/web-worker/slots/cache_stage.h"

namespace moex {
namespace {

constexpr std::uint16_t num_wide = 128;  // number of experts of a wide group
constexpr WireLimits pass_limits{.hidden_size = 96,
                                 .num_layers = 1,
                                 .num_experts = 512,
                                 .num_tokens_max = 4,
                                 .num_pairs_max = num_wide};

// A test stage with fewer slots than a group has experts, and with buffers for all rows of the
// group.
struct PassStage : CacheStage {
    explicit PassStage(EvictionPolicy policy = EvictionPolicy::lru,
                       const ExpertShape& expert_shape = stage_shape)
        : CacheStage(1'780'000, 2 * num_wide, pass_limits, policy, {}, expert_shape) {}
};
struct RoomyStage : Stage {
    explicit RoomyStage(WorkerOptions options = {}, const ExpertShape& expert_shape = stage_shape)
        : Stage(16'000'000, std::move(options)) {
        limits = pass_limits;
        shape = expert_shape;
        serve(first_experts(2 * num_wide));
    }
};

// Makes a group of four rows with 32 different experts each, or of one row with `num_experts`
// experts.
GroupDispatch wide_group(std::uint32_t sequence_id, Dtype dtype, bool unsummed,
                         std::uint16_t num_rows = 4, std::uint16_t num_experts = num_wide) {
    GroupDispatch group{.sequence_id = sequence_id};
    for (std::uint16_t expert = 0; expert < num_experts; ++expert) {
        group.experts.push_back({expert, 1});
        group.rows.push_back(static_cast<std::uint16_t>(expert * 7 % num_rows));
        group.gates.push_back(float_to_half(0.1f + 0.002f * static_cast<float>(expert)));
    }
    group.shape = {.layer = 0,
                   .num_tokens = num_rows,
                   .hidden_dim = 96,
                   .dtype = dtype,
                   .unsummed = unsummed,
                   .num_pairs = num_experts,
                   .num_experts = num_experts};
    for (int i = 0; i < num_rows * 96; ++i)
        group.x.push_back(0.02f * static_cast<float>(i * 37 % 101 - 50));
    return group;
}

// Each expert is brought once, however many rows request it.
TEST(SlotPassesTest, AGroupInPassesHasTheBitsOfOneWithout) {
    RoomyStage roomy;
    for (const EvictionPolicy policy : policies)
        for (const bool shares : {false, true}) {
            PassStage stage(policy);
            if (shares) stage.share_memory();
            ASSERT_LT(stage.slots, num_wide);
            std::uint32_t id = 0;
            for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::int8})
                for (const bool unsummed : {false, true}) {
                    const Bytes frame = encode_group_dispatch(wide_group(++id, dtype, unsummed),
                                                              false);
                    const std::uint64_t before = stage.status().slots.brought;
                    roomy.give(frame);
                    stage.give(frame);
                    EXPECT_EQ(stage.next(FrameType::group_result),
                              roomy.next(FrameType::group_result))
                        << dtype_name(dtype) << (unsummed ? " unsummed" : "");
                    EXPECT_LE(stage.status().slots.brought - before, num_wide);
                }
            EXPECT_EQ(stage.status().errors, 0u);
        }
}

TEST(SlotPassesTest, ClampedExpertsInPassesHaveTheBitsOfOthers) {
    RoomyStage roomy({}, clamped_shape);
    PassStage stage(EvictionPolicy::lru, clamped_shape);
    ASSERT_LT(stage.slots, num_wide);
    for (const bool unsummed : {false, true}) {
        const Bytes frame = encode_group_dispatch(wide_group(1 + unsummed, Dtype::f32, unsummed),
                                                  false);
        roomy.give(frame);
        stage.give(frame);
        EXPECT_EQ(stage.next(FrameType::group_result), roomy.next(FrameType::group_result));
    }
    EXPECT_GT(stage.status().slots.brought, 0u);
}

TEST(SlotPassesTest, AGroupInPassesHasTheBitsOfOneWithoutOnTheProcessor) {
    for (const WorkerArithmetic arithmetic : {WorkerArithmetic::exact, WorkerArithmetic::int8}) {
        WorkerOptions options;
        options.backend = WorkerBackend::cpu;
        options.arithmetic = arithmetic;
        RoomyStage roomy(options);
        options.keep_bytes = 2 * num_wide * stage_blob_bytes;
        Stage small(1'400'000, options);
        small.limits = pass_limits;
        small.serve(first_experts(2 * num_wide));
        small.run_until_shown();
        ASSERT_LT(small.status().units_resident, num_wide);
        for (std::uint32_t id = 1; id <= 4; ++id) {
            const Bytes frame = encode_group_dispatch(wide_group(id, Dtype::f32, id % 2 == 0),
                                                      false);
            roomy.give(frame);
            small.give(frame);
            EXPECT_EQ(small.next(FrameType::group_result), roomy.next(FrameType::group_result));
        }
    }
}

TEST(SlotPassesTest, ARowOfMoreExpertsThanSlotsIsAnswered) {
    RoomyStage roomy;
    PassStage stage;
    const Bytes frame = encode_group_dispatch(wide_group(9, Dtype::f32, false, 1), false);
    roomy.give(frame);
    stage.give(frame);
    EXPECT_EQ(stage.next(FrameType::group_result), roomy.next(FrameType::group_result));
    stage.ask(0);
}

TEST(SlotPassesTest, PassesEndAtACancelOrAnUnreadableExpert) {
    PassStage stage;
    stage.hold_fetches = true;
    stage.give(encode_group_dispatch(wide_group(1, Dtype::f32, false), false));
    stage.give(encode_group_dispatch(group_of(2, 0), false));
    stage.run_until([&] { return !stage.held_fetches.empty(); });
    stage.give(encode_cancel(1));
    stage.hold_fetches = false;
    for (auto& arrive : std::exchange(stage.held_fetches, {})) arrive();
    EXPECT_EQ(decode_group_result(stage.next(FrameType::group_result), stage.limits)->sequence_id,
              2u);
    EXPECT_EQ(stage.status().groups_cancelled, 1u);

    stage.fetches_failing = stage.fetches + 100;
    stage.give(encode_group_dispatch(wide_group(3, Dtype::f32, false), false));
    const auto refused = decode_error(stage.next(FrameType::error));
    EXPECT_EQ(refused->sequence_id, 3u);
    EXPECT_EQ(refused->code, "unavailable");
    stage.fetches_failing = 0;
    stage.asked = 3;
    stage.ask(5);
}

// The lane of a cancelled group is free when its submitted passes have ended. Until then other
// groups use the other lanes.
TEST(SlotPassesTest, ACancelBetweenPassesLeavesTheirLaneToOthers) {
    RoomyStage roomy;
    PassStage stage;
    stage.share_memory();
    std::uint32_t id = 0;
    for (int turn = 0; turn < 8; ++turn) {
        stage.give(encode_group_dispatch(wide_group(++id, Dtype::f32, false), false));
        for (int passes = 0; passes < turn; ++passes) {
            const std::uint64_t submits = stage.device->counters().submits;
            stage.run_until([&] {
                return stage.device->counters().submits > submits ||
                       stage.has_sent(FrameType::group_result);
            });
        }
        stage.give(encode_cancel(id));
        stage.sent.clear();

        const Bytes frame = encode_group_dispatch(wide_group(++id, Dtype::f32, true), false);
        roomy.give(frame);
        stage.give(frame);
        EXPECT_EQ(stage.next(FrameType::group_result), roomy.next(FrameType::group_result)) << turn;
    }
    EXPECT_EQ(stage.status().errors, 0u);
}

}  // namespace
}  // namespace moex
