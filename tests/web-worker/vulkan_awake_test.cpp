// Tests keep-alive dispatches on any Vulkan device; lavapipe if there is no GPU.
#include "web-worker/gpu/vulkan/vulkan_awake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "tests/support/must.h"
#include "tests/support/posted_loop.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex::gpu {
namespace {

class VulkanAwakeTest : public testing::Test {
  protected:
    VulkanAwakeTest() {
        const float priority = 1.0f;
        VkDeviceQueueCreateInfo queue{.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
        queue.queueFamilyIndex = adapter_.queue_family;
        queue.queueCount = 1;
        queue.pQueuePriorities = &priority;
        VkDeviceCreateInfo info{.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
        info.queueCreateInfoCount = 1;
        info.pQueueCreateInfos = &queue;
        if (vkCreateDevice(adapter_.device, &info, nullptr, &device_) != VK_SUCCESS)
            throw std::runtime_error("no device");
        vkGetDeviceQueue(device_, adapter_.queue_family, 0, &queue_);
    }
    ~VulkanAwakeTest() override { vkDestroyDevice(device_, nullptr); }

    const VulkanAdapter adapter_ = test::must(choose_vulkan_adapter(""));
    VkDevice device_ = VK_NULL_HANDLE;
    VkQueue queue_ = VK_NULL_HANDLE;
};

TEST_F(VulkanAwakeTest, KeepAliveWorkEndsAfterRelease) {
    constexpr std::uint32_t for_ever = 0xffffffff;
    VulkanAwake awake(device_, queue_);
    ASSERT_TRUE(awake.open(adapter_, false, for_ever).ok());
    for (std::uint32_t piece = 1; piece <= 20; ++piece) {
        awake.follow();
        awake.follow();  // does nothing: a workgroup is in flight already
        EXPECT_EQ(awake.num_followed(), piece);
        while (!awake.has_begun()) {}
        awake.release();
        EXPECT_EQ(vkQueueWaitIdle(queue_), VK_SUCCESS);
    }

    awake.follow();  // the destructor releases this workgroup
}

TEST_F(VulkanAwakeTest, EndsOnItsOwn) {
    VulkanAwake awake(device_, queue_);
    ASSERT_TRUE(awake.open(adapter_, false, 100).ok());
    awake.follow();
    EXPECT_EQ(vkQueueWaitIdle(queue_), VK_SUCCESS);
    awake.release();
    awake.follow();
    EXPECT_EQ(vkQueueWaitIdle(queue_), VK_SUCCESS);
}

// The bytes of a readback are the same whether the owner's thread polls for it or is called back.
TEST_F(VulkanAwakeTest, NeitherItNorWhoAnswersChangesWhatIsRead) {
    for (const bool owner_answers : {false, true}) {
        test::PostedLoop loop;
        const auto device = test::must(
            open_vulkan_device({.stay_awake = StayAwake::always}, loop.poster()));
        device->set_owner_answers(owner_answers);
        EXPECT_FALSE(device->answer_read(true));  // returns at once: no readback is pending
        const BufferId buffer = test::must(device->create_buffer(64, BufferUsage::storage, "a"));
        const BufferId readback = test::must(device->create_buffer(64, BufferUsage::readback, "b"));

        for (std::uint32_t round = 0; round < 50; ++round) {
            const std::vector<std::uint32_t> words(16, round * 1000);
            device->write_buffer(buffer, 0, std::as_bytes(std::span(words)));
            Command copy;
            copy.kind = Command::Kind::copy;
            copy.source = buffer;
            copy.target = readback;
            copy.size_bytes = 64;
            device->submit(std::span(&copy, 1));

            bool finished = false;
            device->read_buffer(readback, 64, [&](Result<ByteView> bytes) {
                finished = true;
                const ByteView read = test::must(std::move(bytes));
                EXPECT_TRUE(std::ranges::equal(read, std::as_bytes(std::span(words))));
            });
            EXPECT_FALSE(finished);
            loop.run_until(finished, device.get());
        }
    }
}

}  // namespace
}  // namespace moex::gpu
