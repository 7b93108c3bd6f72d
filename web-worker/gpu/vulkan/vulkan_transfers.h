// Copies from this process's memory to buffers beside the kernels: on a queue of transfers where
// the GPU has one (its copy engine), read by the GPU itself from pages that it was told of
// (VK_EXT_external_memory_host). Nobody's thread copies, and no kernel waits for what it does not
// ask for. Copies are numbered from 1 in the order of their calls; a timeline semaphore counts
// those that are over, and a submission to another queue waits for the number it needs.
// The owner's thread, as the device; a thread of its own waits for what is over and posts it.
#pragma once

#include <vulkan/vulkan.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/bytes.h"
#include "web-worker/gpu/vulkan/vulkan_api.h"

namespace moex::gpu {

class VulkanTransfers {
  public:
    // Runs a function on the owner's thread, later.
    using Post = std::function<void(std::function<void()>)>;
    // `queue` is of `adapter`'s family of transfers. Both outlive this.
    VulkanTransfers(VkDevice device, VkQueue queue, Post post)
        : device_(device),
          queue_(queue),
          post_(std::move(post)) {}
    ~VulkanTransfers();  // waits for the queue; what is not over is told to nobody
    VulkanTransfers(const VulkanTransfers&) = delete;

    Status open(const VulkanAdapter& adapter);

    // `memory` begins and ends on pages, and stays until unshare().
    Status share(ByteView memory);
    void unshare(ByteView memory);  // waits for the copies that read it
    bool is_shared(ByteView bytes) const { return find(bytes) != memories_.end(); }

    // Requires is_shared(bytes). `done` is posted once it is over. The value: its number.
    Result<std::uint64_t> copy(ByteView bytes, VkBuffer target, std::uint64_t offset_bytes,
                               std::function<void()> done);
    // Whether copies up to this one are over; with `wait` they are afterwards.
    bool is_over(std::uint64_t number, bool wait = false);
    // counts the copies that are over
    VkSemaphore over() const { return over_; }

  private:
    struct Memory {
        ByteView bytes;
        VkBuffer buffer = VK_NULL_HANDLE;
        VkDeviceMemory memory = VK_NULL_HANDLE;
    };
    using Memories = std::map<const std::byte*, Memory>;  // by where they begin
    struct Pending {
        std::uint64_t number = 0;
        std::function<void()> done;
    };
    Memories::const_iterator find(ByteView bytes) const;
    void free(const Memory& memory);
    Result<VkCommandBuffer> commands();
    void wait_for_copies();

    const VkDevice device_;
    const VkQueue queue_;
    const Post post_;
    VkPhysicalDeviceMemoryProperties memory_types_{};
    std::uint64_t page_bytes_ = 0;  // of memory to be shared
    PFN_vkGetMemoryHostPointerPropertiesEXT host_pointer_properties_ = nullptr;
    PFN_vkGetSemaphoreCounterValueKHR counter_value_ = nullptr;
    PFN_vkWaitSemaphoresKHR wait_semaphores_ = nullptr;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    VkSemaphore over_ = VK_NULL_HANDLE;
    std::uint64_t last_ = 0;        // of the copies, its number
    std::uint64_t known_over_ = 0;  // no copy up to this one is asked about again
    Memories memories_;
    struct Used {
        VkCommandBuffer commands;
        std::uint64_t number;
    };
    std::deque<Used> used_;  // the oldest first

    std::mutex mutex_;  // of what follows
    std::condition_variable wake_;
    std::deque<Pending> pending_;
    bool stopping_ = false;
    std::thread waiter_;
};

}  // namespace moex::gpu
