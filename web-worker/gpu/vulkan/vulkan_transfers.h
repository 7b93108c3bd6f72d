// Copies from this process's memory to buffers beside the kernels: on a queue of transfers where
// the GPU has one (its copy engine), read by the GPU itself from pages that it was told of
// (VK_EXT_external_memory_host). Nobody's thread copies, and no kernel waits for what it does not
// ask for. Copies are numbered from 1 in the order of their calls, and go in that of
// transfer_order.h; a timeline semaphore counts those that are over, and a submission to another
// queue waits for the count it needs.
// The owner's thread, as the device. Two threads of its own: one gives what was asked for meanwhile
// to the queue, which takes some 8 us of NVIDIA's driver a time (the owner does, where the queue is
// the kernels' own, and then at once), one waits for what is over and posts it.
#pragma once

#include <vulkan/vulkan.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "protocol/bytes.h"
#include "protocol/life_guard.h"
#include "web-worker/gpu/vulkan/transfer_order.h"
#include "web-worker/gpu/vulkan/vulkan_api.h"

namespace moex::gpu {

class VulkanTransfers {
  public:
    // So many keep a link busy while others are prepared: some 0.4 ms at 45 GB/s.
    static constexpr std::uint64_t busy_bytes = 16u << 20;

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
          failed_(std::move(failed)),
          order_(busy_bytes) {}
    ~VulkanTransfers();  // waits for the queue; what is not over is told to nobody
    VulkanTransfers(const VulkanTransfers&) = delete;

    Status open(const VulkanAdapter& adapter);

    // `memory` begins and ends on pages, and stays until unshare().
    Status share(ByteView memory);
    void unshare(ByteView memory);  // waits for the copies that read it
    bool is_shared(ByteView bytes) const { return find(bytes) != memories_.end(); }

    // Requires is_shared(bytes). `done` is posted once it is over, and a few that went with it. The
    // value: its number. The queue is given it soon; a foreseen one, as soon as others are over.
    std::uint64_t copy(ByteView bytes, VkBuffer target, std::uint64_t offset_bytes,
                       TransferKind kind, std::function<void()> done);
    // The queue has been given this copy, so that another queue's wait for it ends. The value: what
    // over() counts when it is over; 0: refused, as on a device that is lost.
    std::uint64_t give(std::uint64_t number);
    // Whether this copy is over; with `wait` it is afterwards, unless the device is lost.
    bool is_over(std::uint64_t number, bool wait = false);
    // For all queues of the device, while no thread uses this one.
    void wait_idle();
    // No copy is given or told any more.
    void stop();
    // counts the copies that are over
    VkSemaphore over() const { return over_; }
    // Copies up to this number are over; what give() says of one of them covers all of them.
    std::uint64_t settled() const { return settled_; }

  private:
    struct Memory {
        ByteView bytes;
        VkBuffer buffer = VK_NULL_HANDLE;
        VkDeviceMemory memory = VK_NULL_HANDLE;
    };
    using Memories = std::map<const std::byte*, Memory>;  // by where they begin
    struct Asked {
        std::uint64_t place = 0;  // what over() counts behind it
        VkBuffer source = VK_NULL_HANDLE, target = VK_NULL_HANDLE;
        VkBufferCopy region{};
        std::function<void()> done;
    };
    using Done = std::vector<std::function<void()>>;
    struct Pending {
        std::uint64_t last = 0;  // of these, its place
        Done done;
    };
    Memories::const_iterator find(ByteView bytes) const;
    void free(const Memory& memory);
    Result<VkCommandBuffer> commands();
    Result<VkCommandBuffer> record(const Asked& asked);
    Status submit_next(TransferKind up_to);
    bool give_next(TransferKind up_to);
    void give_all();
    void fail(Error error);
    void settle();
    std::uint64_t place_of(std::uint64_t number);
    bool reached(std::uint64_t count, bool wait);
    void know_over(std::uint64_t count);
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
    Memories memories_;
    std::atomic<std::uint64_t> settled_ = 0;     // copies up to this number are over
    std::atomic<std::uint64_t> known_over_ = 0;  // so many copies are
    std::atomic<std::uint64_t> given_ = 0;       // so many, to the queue
    std::atomic<bool> refuses_ = false;          // the queue did once: no other is given
    bool gave_up_ = false;                       // to wait

    std::mutex queue_mutex_;      // of the queue and the pool, and of
    std::vector<Asked> refused_;  // which end with the owner
    struct Used {
        VkCommandBuffer commands;
        std::uint64_t place;
    };
    std::deque<Used> used_;  // the oldest first

    std::mutex mutex_;  // of what follows
    std::condition_variable wake_giver_, wake_waiter_;
    TransferOrder order_;
    std::unordered_map<std::uint64_t, Asked> asked_;  // not given to the queue yet, by number
    std::deque<Pending> pending_;
    bool stopping_ = false;
    std::thread giver_, waiter_;
    LifeGuard life_;
};

}  // namespace moex::gpu
