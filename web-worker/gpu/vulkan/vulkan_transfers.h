// Copies from this process's memory to buffers while kernels run.
//
// The problem: a thread that copies experts to staging memory blocks its other work, and reaches
// only a fraction of the link's speed.
// The method: the GPU reads the memory itself (VK_EXT_external_memory_host), on a transfer queue if
// it has one (its copy engine). No thread copies, and a kernel waits only for copies that it needs.
// Copies are numbered from 1 in the order of copy(), and are submitted in the order of
// transfer_order.h. A timeline semaphore counts the copies that are over. A submission to another
// queue waits for the count that it needs.
// Owner: the thread of the device. Two more threads: the giver submits copies, since each
// submission takes about 8 us in NVIDIA's driver; the waiter waits for copies and posts their
// `done`. If the transfer queue is the compute queue, the owner itself submits, at once.
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
    // Bytes in flight that keep a link busy while more copies are prepared: about 0.4 ms at 45
    // GB/s.
    static constexpr std::uint64_t busy_bytes = 16u << 20;

    // Runs a function on the owner's thread, later.
    using Post = std::function<void(std::function<void()>)>;
    // `queue` belongs to `adapter`'s transfer family. `is_kernels`: kernels run on this queue, too.
    // `device` and `queue` must outlive this object. `failed` is posted if the queue refuses a
    // copy: the device is lost.
    VulkanTransfers(VkDevice device, VkQueue queue, bool is_kernels, Post post,
                    std::function<void(const Error&)> failed)
        : device_(device),
          queue_(queue),
          is_kernels_(is_kernels),
          post_(std::move(post)),
          failed_(std::move(failed)),
          order_(busy_bytes) {}
    ~VulkanTransfers();  // waits for the queue; no `done` is called after destruction
    VulkanTransfers(const VulkanTransfers&) = delete;

    Status open(const VulkanAdapter& adapter);

    // Registers `memory`, from which copies may read. It begins and ends on page boundaries, and
    // must stay valid until unshare().
    Status share(ByteView memory);
    void unshare(ByteView memory);  // waits for the copies that read this memory
    bool is_shared(ByteView bytes) const { return find(bytes) != memories_.end(); }

    // Starts a copy and returns its number. Requires is_shared(bytes). `done` is posted after this
    // copy and a few others submitted with it are over. The copy is submitted soon; a prefetch is
    // submitted when enough earlier copies are over.
    std::uint64_t copy(ByteView bytes, VkBuffer target, std::uint64_t offset_bytes,
                       TransferKind kind, std::function<void()> done);
    // Submits this copy now if it was not submitted yet, so that another queue's wait for it will
    // end. Returns the count of over() when the copy is over; 0: the copy was refused, for example
    // on a lost device.
    std::uint64_t give(std::uint64_t number);
    // Returns true if this copy is over. If `wait`, waits until the copy is over, or the device is
    // lost.
    bool is_over(std::uint64_t number, bool wait = false);
    // Waits until all queues of the device are idle, while no thread uses the transfer queue.
    void wait_idle();
    // Stops the transfers: no copy is submitted and no `done` is called after this call.
    void stop();
    // The timeline semaphore that counts the copies that are over.
    VkSemaphore over() const { return over_; }
    // Copies up to the returned number are over. The result of give() for any of these numbers
    // covers them all.
    std::uint64_t settled() const { return settled_; }

  private:
    struct Memory {
        ByteView bytes;
        VkBuffer buffer = VK_NULL_HANDLE;
        VkDeviceMemory memory = VK_NULL_HANDLE;
    };
    using Memories = std::map<const std::byte*, Memory>;  // by start address
    struct Asked {
        std::uint64_t place = 0;  // value of the semaphore over() when this copy is over
        VkBuffer source = VK_NULL_HANDLE, target = VK_NULL_HANDLE;
        VkBufferCopy region{};
        std::function<void()> done;
    };
    using Done = std::vector<std::function<void()>>;
    struct Pending {
        std::uint64_t last = 0;  // Asked::place of the last copy with a callback in `done`
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
    std::uint64_t page_bytes_ = 0;  // page size that shared memory is aligned to
    PFN_vkGetMemoryHostPointerPropertiesEXT host_pointer_properties_ = nullptr;
    PFN_vkGetSemaphoreCounterValueKHR counter_value_ = nullptr;
    PFN_vkWaitSemaphoresKHR wait_semaphores_ = nullptr;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    VkSemaphore over_ = VK_NULL_HANDLE;
    Memories memories_;
    std::atomic<std::uint64_t> settled_ = 0;     // copies up to this number are over
    std::atomic<std::uint64_t> known_over_ = 0;  // number of copies that are over
    std::atomic<std::uint64_t> given_ = 0;       // number of copies submitted to the queue
    // The queue refused a copy: no other copy is submitted.
    std::atomic<bool> refuses_ = false;
    bool gave_up_ = false;  // a wait for a copy timed out

    std::mutex queue_mutex_;  // this mutex guards the queue, the pool and refused_
    // Copies that the queue refused; destroyed with this object, on the owner's thread.
    std::vector<Asked> refused_;
    struct Used {
        VkCommandBuffer commands;
        std::uint64_t place;
    };
    std::deque<Used> used_;  // the oldest first

    std::mutex mutex_;  // this mutex guards the members below
    std::condition_variable wake_giver_, wake_waiter_;
    TransferOrder order_;
    // Copies that are not submitted yet, by number.
    std::unordered_map<std::uint64_t, Asked> asked_;
    std::deque<Pending> pending_;
    bool stopping_ = false;
    std::thread giver_, waiter_;
    LifeGuard life_;
};

}  // namespace moex::gpu
