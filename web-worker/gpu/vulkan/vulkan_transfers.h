// Copies from this process's memory to buffers beside the kernels: on a queue of transfers where
// the GPU has one (its copy engine), read by the GPU itself from pages that it was told of
// (VK_EXT_external_memory_host). Nobody's thread copies, and no kernel waits for what it does not
// ask for. Copies are numbered from 1 in the order of their calls; a timeline semaphore counts
// those that are over, and a submission to another queue waits for the number it needs.
// The owner's thread, as the device. Two threads of its own: one gives what was asked for meanwhile
// to the queue, which takes some 8 us of NVIDIA's driver a time (the owner does, where the queue is
// the kernels' own), one waits for what is over and posts it.
#pragma once

#include <vulkan/vulkan.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/bytes.h"
#include "protocol/life_guard.h"
#include "web-worker/gpu/vulkan/vulkan_api.h"

namespace moex::gpu {

class VulkanTransfers {
  public:
    // Runs a function on the owner's thread, later.
    using Post = std::function<void(std::function<void()>)>;
    // `queue` is of `adapter`'s family of transfers; `is_kernels`: the one that kernels run on,
    // too. Both outlive this. `failed` is posted where the queue took no copy: that device is lost.
    VulkanTransfers(VkDevice device, VkQueue queue, bool is_kernels, Post post,
                    std::function<void(const Error&)> failed)
        : device_(device),
          queue_(queue),
          is_kernels_(is_kernels),
          post_(std::move(post)),
          failed_(std::move(failed)) {}
    ~VulkanTransfers();  // waits for the queue; what is not over is told to nobody
    VulkanTransfers(const VulkanTransfers&) = delete;

    Status open(const VulkanAdapter& adapter);

    // `memory` begins and ends on pages, and stays until unshare().
    Status share(ByteView memory);
    void unshare(ByteView memory);  // waits for the copies that read it
    bool is_shared(ByteView bytes) const { return find(bytes) != memories_.end(); }

    // Requires is_shared(bytes). `done` is posted once it is over, and those that were asked for
    // with it. The value: its number. The queue is given it soon.
    std::uint64_t copy(ByteView bytes, VkBuffer target, std::uint64_t offset_bytes,
                       std::function<void()> done);
    // Whether the queue has been given copies up to this one, so that another queue's wait for it
    // ends. It refuses none but on a device that is lost.
    bool give(std::uint64_t number);
    // Whether copies up to this one are over; with `wait` they are afterwards, unless the device is
    // lost.
    bool is_over(std::uint64_t number, bool wait = false);
    // For all queues of the device, while no thread uses this one.
    void wait_idle();
    // No copy is given or told any more.
    void stop();
    // counts the copies that are over
    VkSemaphore over() const { return over_; }

  private:
    struct Memory {
        ByteView bytes;
        VkBuffer buffer = VK_NULL_HANDLE;
        VkDeviceMemory memory = VK_NULL_HANDLE;
    };
    using Memories = std::map<const std::byte*, Memory>;  // by where they begin
    struct Asked {
        std::uint64_t number = 0;
        VkBuffer source = VK_NULL_HANDLE, target = VK_NULL_HANDLE;
        VkBufferCopy region{};
        std::function<void()> done;
    };
    using Done = std::vector<std::function<void()>>;
    struct Pending {
        std::uint64_t last = 0;  // of those that the queue was given at once
        Done done;
    };
    Memories::const_iterator find(ByteView bytes) const;
    void free(const Memory& memory);
    Result<VkCommandBuffer> commands();
    Result<VkCommandBuffer> record(const Asked& asked);
    Status give_asked();
    Status submit(const std::vector<Asked>& all);
    void give_copies();
    void wait_for_copies();

    const VkDevice device_;
    const VkQueue queue_;
    const bool is_kernels_;
    const Post post_;
    const std::function<void(const Error&)> failed_;
    VkPhysicalDeviceMemoryProperties memory_types_{};
    std::uint64_t page_bytes_ = 0;  // of memory to be shared
    PFN_vkGetMemoryHostPointerPropertiesEXT host_pointer_properties_ = nullptr;
    PFN_vkGetSemaphoreCounterValueKHR counter_value_ = nullptr;
    PFN_vkWaitSemaphoresKHR wait_semaphores_ = nullptr;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    VkSemaphore over_ = VK_NULL_HANDLE;
    std::uint64_t last_ = 0;  // of the copies, its number
    Memories memories_;
    std::atomic<std::uint64_t> known_over_ = 0;  // no copy up to this one is asked about again
    std::atomic<std::uint64_t> given_ = 0;       // copies up to this one
    std::atomic<bool> refuses_ = false;          // the queue did once: no other is given
    bool gave_up_ = false;                       // to wait

    std::mutex queue_mutex_;      // of the queue and the pool, and of
    std::vector<Asked> refused_;  // which end with the owner
    struct Used {
        VkCommandBuffer commands;
        std::uint64_t number;
    };
    std::deque<Used> used_;  // the oldest first

    std::mutex mutex_;  // of what follows
    std::condition_variable wake_giver_, wake_waiter_;
    std::vector<Asked> asked_;  // not given to the queue yet
    std::deque<Pending> pending_;
    bool stopping_ = false;
    std::thread giver_, waiter_;
    LifeGuard life_;
};

}  // namespace moex::gpu
