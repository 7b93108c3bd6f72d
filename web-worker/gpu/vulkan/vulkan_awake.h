// Keeps a GPU's clock up while it receives work in small pieces (keep-alive dispatches).
//
// The problem: an NVIDIA H200 that gets a tenth of a millisecond of work at a time runs at 345 of
// its 1,980 MHz, and takes three times as long for each piece.
// The method: after each piece of work a workgroup of useless computation is submitted to the same
// queue. It ends when the next piece is submitted (release()), or by itself after some
// milliseconds. In a queue of its own it would not help: the GPU would alternate between the two
// queues, half a millisecond each.
// Limits: it is used only if the GPU sees the CPU's write in time (ends_when_told()).
// Owner: the thread of the device.
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
    // The number of times that a workgroup polls for release() before it ends by itself: some
    // milliseconds. If pieces of work arrive less often, the GPU rests.
    static constexpr std::uint32_t looks_default = 16384;

    // `queue`: the queue of the real work. `device` and `queue` must outlive this object.
    VulkanAwake(VkDevice device, VkQueue queue) : device_(device), queue_(queue) {}
    ~VulkanAwake();  // waits until the queue is idle
    VulkanAwake(const VulkanAwake&) = delete;

    // `only_alone`: follow() does nothing while another process holds memory on that GPU (the GPU
    // would alternate between them), or while this machine runs on its battery.
    Status open(const VulkanAdapter& adapter, bool only_alone, std::uint32_t looks = looks_default);
    // Tests whether a workgroup ends soon after release(). If the GPU does not see the CPU's write
    // in time, all later work would wait. (The flag is in device memory: an H200 reads a cached
    // copy of the CPU's memory.)
    bool ends_when_told();
    // Returns true if the workgroup that was submitted last has begun.
    bool has_begun() const;

    // Submits a keep-alive workgroup after a piece of work. Does nothing if such a workgroup is in
    // flight already.
    void follow();
    // Ends the keep-alive workgroup in flight. Called before the next piece of work.
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
    // Time of the last check for other processes.
    std::chrono::steady_clock::time_point looked_at_{};
};

}  // namespace moex::gpu
