// Tests the bench of a whole model on lavapipe: the rows of results that the bench reports, and the
// GPU work of a step in each condition. The tests check no durations.
#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "tests/support/posted_loop.h"
#include "web-worker/decoder/decoder_timing.h"
#include "web-worker/gpu/device_decorator.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/kernel_timing.h"

namespace moex {
namespace {

double clock_us() {
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

struct Timed {
    std::vector<DecoderTimingRow> rows;
    Status done = Error{ErrorCode::internal, "it did not end"};
};

Timed time_of(gpu::Device& device, test::PostedLoop& loop, DecoderTimingOptions options) {
    options.shorten();
    DecoderTiming timing(device, options, clock_us);
    Timed timed;
    bool finished = false;
    timing.start([&](const DecoderTimingRow& row) { timed.rows.push_back(row); },
                 [&](Status done) {
                     timed.done = std::move(done);
                     finished = true;
                 });
    if (!finished) loop.run_until(finished);
    return timed;
}

// Counts readings of a buffer into which the submissions before copied nothing. In a browser tab
// such a reading would end before the GPU has finished its work.
class ReadingsOfNothing : public gpu::DeviceDecorator {
  public:
    using DeviceDecorator::DeviceDecorator;
    std::uint32_t readings = 0, of_nothing = 0;

    void submit(std::span<const gpu::Command> commands) override {
        last_target_ = {};
        for (const gpu::Command& command : commands)
            if (command.kind == gpu::Command::Kind::copy) last_target_ = command.target;
        device_.submit(commands);
    }
    void read_buffer(gpu::BufferId buffer, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override {
        ++readings;
        if (!(last_target_ == buffer)) ++of_nothing;
        device_.read_buffer(buffer, size_bytes, std::move(done));
    }

  private:
    gpu::BufferId last_target_;
};

TEST(DecoderTimingTest, TimerWaitsForTheTimedWork) {
    test::PostedLoop loop;
    auto device = gpu::open_vulkan_device({}, loop.poster());
    ASSERT_TRUE(device.ok()) << device.error().message;
    ReadingsOfNothing watched(**device);
    const Timed timed = time_of(watched, loop, {.fetch = {2}, .ablation = false});
    ASSERT_TRUE(timed.done.ok()) << timed.done.error().message;
    EXPECT_GT(watched.readings, 50u);
    EXPECT_EQ(watched.of_nothing, 0u);
}

TEST(KernelTimingTest, TimerWaitsForTheTimedWork) {
    test::PostedLoop loop;
    auto device = gpu::open_vulkan_device({}, loop.poster());
    ASSERT_TRUE(device.ok()) << device.error().message;
    ReadingsOfNothing watched(**device);
    const TimingOptions options = TimingOptions::bench("demo", watched.adapter());
    KernelTiming timing(watched, options, clock_us);
    bool finished = false;
    std::uint32_t rows = 0;
    timing.start([&](const TimingRow&) { ++rows; },
                 [&](Status done) {
                     EXPECT_TRUE(done.ok()) << done.error().message;
                     finished = true;
                 });
    if (!finished) loop.run_until(finished);
    EXPECT_GT(rows, 5u);
    EXPECT_GT(watched.readings, 10u);
    const std::uint32_t held = static_cast<std::uint32_t>(options.rows.size()) *
                               (1 + options.layers);
    EXPECT_EQ(watched.of_nothing, held)
        << "an expert and a round of each layer, held back: not timed";
}

TEST(DecoderTimingTest, EachConditionCountsItsDispatches) {
    test::PostedLoop loop;
    auto device = gpu::open_vulkan_device({}, loop.poster());
    ASSERT_TRUE(device.ok()) << device.error().message;
    const std::uint64_t bytes_before = (*device)->counters().buffer_bytes;

    const Timed timed = time_of(**device, loop, {.fetch = {2, 4}, .kernels = true});
    ASSERT_TRUE(timed.done.ok()) << timed.done.error().message;
    std::map<std::string, DecoderTimingRow> by_name;
    std::uint32_t dispatches = 0, of_prompt = 0;
    for (const DecoderTimingRow& row : timed.rows) {
        if (row.what.rfind("kernel ", 0) == 0) {
            dispatches += row.dispatches;
        } else if (row.what.rfind("prompt kernel ", 0) == 0) {
            of_prompt += row.dispatches;
            EXPECT_EQ(row.tokens, 16u) << row.what;
            EXPECT_GT(row.exec_ms, 0) << row.what;
        } else
            by_name[text(row.what, ' ', row.fetch)] = row;
    }

    ASSERT_EQ(by_name.size(), 6u);
    for (const char* const name : {"none 1", "reuse 1", "pipeline 2", "both 2", "both 4"}) {
        const DecoderTimingRow& row = by_name[name];
        EXPECT_EQ(row.tokens, 8u) << name;
        EXPECT_EQ(row.dispatches, 93u) << name;
        EXPECT_GT(row.exec_ms, 0) << name;
        EXPECT_GE(row.model_ms, row.exec_ms) << name;
    }
    EXPECT_EQ(dispatches, 92u) << "all kernels but the one that moves the sequence on";
    EXPECT_GT(of_prompt, 0u) << "the kernels that read a prompt";
    EXPECT_EQ(by_name["reuse 1"].created, 0u);
    EXPECT_EQ(by_name["both 4"].created, 0u);
    EXPECT_GE(by_name["none 1"].created, 2 * 93u);
    EXPECT_GE(by_name["pipeline 2"].created, 2 * 93u);
    EXPECT_EQ((*device)->counters().buffer_bytes, bytes_before) << "everything was let go";
}

TEST(DecoderTimingTest, UnknownShapeIsReported) {
    test::PostedLoop loop;
    auto device = gpu::open_vulkan_device({}, loop.poster());
    ASSERT_TRUE(device.ok()) << device.error().message;
    const Timed timed = time_of(**device, loop, {.shape = "nonsense"});
    ASSERT_FALSE(timed.done.ok());
    EXPECT_EQ(timed.done.error().message, "no shape is called nonsense");
    EXPECT_TRUE(timed.rows.empty());
}

}  // namespace
}  // namespace moex
