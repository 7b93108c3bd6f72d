// Keeps a GPU's clock up while work comes to it in small pieces. Behind each piece goes a workgroup
// that computes for its own sake until the next piece is there: without it an NVIDIA H200 that is
// given a tenth of a millisecond of work at a time runs at 345 of its 1,980 MHz, and takes three
// times as long for each. (In a queue of its own the same work takes turns with the real one, half
// a millisecond each.)
// The owner's thread, as the device.
#pragma once

#include <vulkan/vulkan.h>

#include <chrono>
#include <cstdint>

#include "protocol/result.h"
#include "web-worker/gpu/vulkan/vulkan_api.h"
#include "web-worker/gpu/vulkan/vulkan_memory.h"
#include "web-worker/gpu/vulkan/vulkan_pipeline.h"

namespace moex::gpu {

class VulkanAwake {
  public:
    // How often a workgroup looks whether it is let go of before it ends on its own: for some
    // milliseconds. Pieces of work that come less often let the GPU rest.
    static constexpr std::uint32_t looks_default = 16384;

    // `queue` is the one that the work goes to. Both outlive this.
    VulkanAwake(VkDevice device, VkQueue queue) : device_(device), queue_(queue) {}
    ~VulkanAwake();  // waits for the queue
    VulkanAwake(const VulkanAwake&) = delete;

    // `only_alone`: follow() does nothing while somebody else holds memory on that GPU (it would
    // take turns with them), or this machine runs on its battery.
    Status open(const VulkanAdapter& adapter, bool only_alone, std::uint32_t looks = looks_default);
    // Whether it ends soon once it is let go of in the middle: where the GPU does not see in time
    // what the host writes, everything behind it would wait. (Not the host's memory: an H200 looks
    // at a copy of it.)
    bool ends_when_told();
    // Whether the last one has begun.
    bool has_begun() const;

    // Behind a piece of work; nothing where one is there already.
    void follow();
    // Before the next piece: from now on what follow() gave to the queue ends.
    void release();

    std::uint32_t num_followed() const { return num_followed_; }

  private:
    enum Word : std::uint32_t { released, begun, noise, num_words };

    Status make_set();
    Status record(std::uint32_t queue_family);
    std::uint32_t* words() const;
    double end_ms(bool release_it);
    bool may_follow();

    const VkDevice device_;
    const VkQueue queue_;
    VkPhysicalDevice physical_ = VK_NULL_HANDLE;
    bool only_alone_ = false;
    VulkanPipeline pipeline_;
    VulkanBuffer words_;
    VkDescriptorPool sets_ = VK_NULL_HANDLE;
    VkDescriptorSet set_ = VK_NULL_HANDLE;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    VkCommandBuffer commands_ = VK_NULL_HANDLE;

    std::uint32_t num_followed_ = 0;
    bool following_ = false;
    bool may_ = false;
    std::chrono::steady_clock::time_point looked_at_{};  // who else is there
};

}  // namespace moex::gpu
