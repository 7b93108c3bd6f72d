// One device shared by several workers of a process. Runs on any Vulkan device; lavapipe if there
// is no GPU.
#include "web-worker/native/shared_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/support/must.h"
#include "tests/support/posted_loop.h"
#include "web-worker/gpu/device_decorator.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex::native {
namespace {

// A Vulkan device that a test can declare lost.
class Breakable : public gpu::DeviceDecorator {
  public:
    Breakable(std::unique_ptr<gpu::Device> device, Breakable*& newest)
        : DeviceDecorator(*device),
          own_(std::move(device)),
          newest_(newest) {
        newest_ = this;
    }
    ~Breakable() override {
        if (newest_ == this) newest_ = nullptr;
    }
    void on_lost(std::function<void(gpu::Loss)> handler) override { lost_ = std::move(handler); }
    void lose() { lost_({gpu::LossKind::other, "a test"}); }

  private:
    std::unique_ptr<gpu::Device> own_;
    Breakable*& newest_;
    std::function<void(gpu::Loss)> lost_;
};

class SharedDeviceTest : public testing::Test {
  protected:
    std::unique_ptr<gpu::Device> lend() { return test::must(shared_.lend()); }

    test::PostedLoop loop_;
    Breakable* newest_ = nullptr;  // the device that was opened most recently; null: none
    int num_opened_ = 0;
    SharedDevice shared_{[this]() -> Result<std::unique_ptr<gpu::Device>> {
        ++num_opened_;
        return std::unique_ptr<gpu::Device>(std::make_unique<Breakable>(
            test::must(gpu::open_vulkan_device({}, loop_.poster())), newest_));
    }};
};

TEST_F(SharedDeviceTest, IsOpenedByTheFirstAndClosedByTheLast) {
    EXPECT_EQ(shared_.number(), 0u);
    auto one = lend(), other = lend();
    EXPECT_EQ(num_opened_, 1);
    EXPECT_EQ(shared_.number(), 1u);

    one.reset();
    EXPECT_NE(newest_, nullptr);
    one = lend();
    EXPECT_EQ(num_opened_, 1);

    one.reset();
    other.reset();
    EXPECT_EQ(newest_, nullptr);
    EXPECT_EQ(shared_.number(), 0u);
    EXPECT_FALSE(shared_.answer_read());
    one = lend();
    EXPECT_EQ(shared_.number(), 2u);
}

// A worker that returns its device does not disturb the readbacks of another worker.
TEST_F(SharedDeviceTest, EachReadsItsOwn) {
    auto one = lend(), other = lend();
    const auto fill = [](gpu::Device& device, std::uint32_t value) {
        const std::vector<std::uint32_t> words(16, value);
        const auto buffer = test::must(device.create_buffer(64, gpu::BufferUsage::storage, "a"));
        const auto back = test::must(device.create_buffer(64, gpu::BufferUsage::readback, "b"));
        device.write_buffer(buffer, 0, std::as_bytes(std::span(words)));
        gpu::Command copy;
        copy.kind = gpu::Command::Kind::copy;
        copy.source = buffer;
        copy.target = back;
        copy.size_bytes = 64;
        device.submit(std::span(&copy, 1));
        return std::pair(buffer, back);
    };
    const auto [buffer, back] = fill(*one, 7);
    const auto [other_buffer, other_back] = fill(*other, 9);

    bool finished = false;
    other->read_buffer(other_back, 64, [&](Result<ByteView> bytes) {
        finished = true;
        const std::vector<std::uint32_t> wanted(16, 9);
        EXPECT_TRUE(
            std::ranges::equal(test::must(std::move(bytes)), std::as_bytes(std::span(wanted))));
    });
    one->destroy_buffer(buffer);
    one->destroy_buffer(back);
    one.reset();
    loop_.run_until(finished, other.get());
}

TEST_F(SharedDeviceTest, LossIsReportedOnceAndAnotherDeviceLent) {
    auto one = lend(), other = lend(), third = lend();
    std::string heard;
    // A handler may destroy its lent device, and ask for another one at once.
    one->on_lost([&](const gpu::Loss& loss) {
        heard += "one: " + loss.reason + "; ";
        one.reset();
        one = lend();
    });
    other->on_lost([&](const gpu::Loss&) { heard += "other; "; });
    third->on_lost([&](const gpu::Loss&) { heard += "third; "; });
    third.reset();  // the loss handler of `third` is not called any more

    Breakable* const lost = newest_;
    lost->lose();
    EXPECT_NE(heard.find("one: a test; "), std::string::npos) << heard;
    EXPECT_NE(heard.find("other; "), std::string::npos) << heard;
    EXPECT_EQ(heard.find("third"), std::string::npos) << heard;
    EXPECT_EQ(num_opened_, 2);
    EXPECT_NE(newest_, lost);

    other.reset();
    other = lend();
    EXPECT_EQ(num_opened_, 2);
    EXPECT_EQ(shared_.number(), 2u);
}

TEST(SharedDeviceErrorTest, ErrorOfOpeningIsReturnedAndNoDeviceLent) {
    SharedDevice shared([]() -> Result<std::unique_ptr<gpu::Device>> {
        return Error{ErrorCode::unavailable, "no driver"};
    });
    const auto lent = shared.lend();
    ASSERT_FALSE(lent.ok());
    EXPECT_EQ(lent.error().message, "no driver");
    EXPECT_EQ(shared.number(), 0u);
    shared.share_memory({});
    shared.unshare_memory({});
    shared.answer_reads(true);
}

}  // namespace
}  // namespace moex::native
