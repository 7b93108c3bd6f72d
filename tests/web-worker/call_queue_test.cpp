// The queue of calls: calls run in order, their number is bounded, they can be cancelled, and they
// are answered on the connection that they arrived on.
#include "tests/web-worker/stage.h"

namespace moex {
namespace {

TEST(CallQueueTest, ACancelledGroupThatWaitsIsDroppedAndTooManyAreBusy) {
    Stage stage;
    stage.serve({1});
    // Of seven calls two run, four wait, and the seventh is answered BUSY.
    for (std::uint32_t id = 1; id <= 7; ++id)
        stage.give(encode_group_dispatch(group_of(id, 1), false));

    EXPECT_EQ(decode_frame_header(stage.next(FrameType::busy))->sequence_id, 7u);
    stage.give(encode_cancel(4));
    stage.give(encode_cancel(77));

    std::vector<std::uint32_t> answered;
    for (int i = 0; i < 5; ++i)
        answered.push_back(
            decode_group_result(stage.next(FrameType::group_result), stage.limits)->sequence_id);
    EXPECT_EQ(answered, (std::vector<std::uint32_t>{1, 2, 3, 5, 6}));
    EXPECT_EQ(stage.status().groups_cancelled, 1u);
}

TEST(CallQueueTest, RoundsAfterWarmUpCreateNothing) {
    Stage stage;
    stage.serve({1, 2});
    stage.run_until_phase(WorkerPhase::serving);

    const gpu::DeviceCounters warm = stage.status().device_at_warm;
    for (std::uint32_t id = 1; id <= 6; ++id) {
        stage.give(encode_group_dispatch(group_of(id, 1 + id % 2), false));
        (void)stage.next(FrameType::group_result);
    }

    stage.run_until_shown();
    const gpu::DeviceCounters after = stage.status().device;
    EXPECT_EQ(after.submits - warm.submits, 6u);
    EXPECT_EQ(after.readbacks - warm.readbacks, 6u);
    EXPECT_EQ(after.buffers_created, warm.buffers_created);
    EXPECT_EQ(after.bind_groups_created, warm.bind_groups_created);
    EXPECT_EQ(after.pipelines_created, warm.pipelines_created);
}

TEST(CallQueueTest, TimesAreSentToAHubThatReadsThem) {
    for (const bool reads : {false, true}) {
        Stage stage;
        if (reads) stage.hub_caps.push_back(times_cap);
        stage.serve({1});
        stage.give(encode_group_dispatch(group_of(1, 1), false));
        const auto answer = decode_group_result(stage.next(FrameType::group_result), stage.limits);
        ASSERT_TRUE(answer.ok());
        EXPECT_EQ(answer->times.has_value(), reads);
    }
}

// A tab also passes the memory around a frame, so that the rows x are uploaded to the GPU from that
// memory.
TEST(CallQueueTest, AFrameInPlaceHasTheSameAnswer) {
    Stage stage;
    stage.serve({1});
    for (const bool lz4 : {false, true}) {
        const Bytes frame = encode_group_dispatch(group_of(1, 1), lz4);
        stage.give(frame);
        const Bytes answer = stage.next(FrameType::group_result);
        for (const std::size_t headroom : {0u, 4u, 4096u}) {
            Bytes memory(headroom, std::byte{0xaa});
            memory.insert(memory.end(), frame.begin(), frame.end());
            stage.core->on_frame_in_place(memory, frame.size());
            EXPECT_EQ(stage.next(FrameType::group_result), answer) << headroom;
        }
    }
}

// Regression: after a reconnect, the answer to an earlier call was once sent on the new connection.
TEST(CallQueueTest, AnAnswerThatOutlivesItsConnectionIsNotSent) {
    Stage stage;
    stage.serve({1});
    stage.device->hold_reads = true;
    stage.give(encode_group_dispatch(group_of(40, 1), false));

    stage.hang_up(1006, "");
    stage.welcome();
    stage.assign({1});
    stage.device->release_reads();

    stage.expect_answer(1, 1);
}

TEST(CallQueueTest, AGroupTooLargeForItsMemoryIsRefusedWithWhatItTakes) {
    Stage stage(150'000);
    stage.serve({1});
    GroupDispatch group = group_of(1, 1);
    group.shape.num_tokens = group.shape.num_pairs = 16;
    group.experts = {{1, 16}};
    group.rows.clear();
    for (std::uint16_t row = 0; row < 16; ++row) group.rows.push_back(row);
    group.gates.assign(16, float_to_half(0.5f));
    group.x.resize(16 * 96, 0.1f);

    stage.give(encode_group_dispatch(group, false));
    const auto error = decode_error(stage.next(FrameType::error));
    EXPECT_EQ(error->code, "num_tokens_range");
    const std::uint32_t takes = static_cast<std::uint32_t>(std::stoul(error->wanted));
    ASSERT_LT(takes, 16u);

    group.shape.num_tokens = group.shape.num_pairs = takes;
    group.experts = {{1, static_cast<std::uint16_t>(takes)}};
    group.rows.resize(takes);
    group.gates.resize(takes);
    group.x.resize(takes * 96);

    stage.give(encode_group_dispatch(group, false));
    EXPECT_TRUE(decode_group_result(stage.next(FrameType::group_result), stage.limits).ok());
}

}  // namespace
}  // namespace moex
