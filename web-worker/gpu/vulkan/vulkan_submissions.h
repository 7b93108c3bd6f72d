// What is given to a device's queue of kernels: the commands that are recorded now, the bytes that
// wait in staging memory to be copied into buffers, and who waits for what is read back.
// Submissions are numbered from 1 in their order. The owner's thread, as the device; a thread of
// its own sleeps on fences and posts what was read back, unless the owner looks for it itself.
#pragma once

#include <vulkan/vulkan.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "protocol/bytes.h"
#include "protocol/life_guard.h"
#include "web-worker/gpu/device.h"
#include "web-worker/gpu/vulkan/vulkan_api.h"
#include "web-worker/gpu/vulkan/vulkan_awake.h"
#include "web-worker/gpu/vulkan/vulkan_memory.h"

namespace moex::gpu {

// What a barrier is followed by. Before a dispatch one that names copies and the host, too, costs
// an H200 another 1.2 us: a token of 533 dispatches 0.6 ms.
enum class Followed { by_dispatch, by_copy, by_anything };
// Everything before is visible to what follows.
void barrier(VkCommandBuffer commands, Followed followed = Followed::by_anything);

class VulkanSubmissions {
  public:
    // Runs a function on the owner's thread, later.
    using Post = std::function<void(std::function<void()>)>;

    // All of these outlive this. `queue` is of `adapter`'s family of kernels.
    VulkanSubmissions(const VulkanAdapter& adapter, VkDevice device, VkQueue queue, Post post);
    ~VulkanSubmissions();
    VulkanSubmissions(const VulkanSubmissions&) = delete;

    Status open();
    // Waits for the device. What is not answered by now never is: it is let go of here, while the
    // device is whole.
    void close();
    // The GPU computes between submissions, too; null: it rests.
    void stay_awake(std::unique_ptr<VulkanAwake> awake) { awake_ = std::move(awake); }
    void on_lost(std::function<void(Loss)> handler) { lost_ = std::move(handler); }

    // Records here into the submission of this number, until flush().
    VkCommandBuffer commands() { return open_slot().commands; }
    std::uint64_t next_number() const { return submissions_ + 1; }
    // Copies `bytes` into `target` through staging memory; waits where too many are on their way.
    void write(VulkanBuffer& target, std::uint64_t offset_bytes, ByteView bytes);
    // What is recorded from here to end_timed() is timed, where the device can.
    void begin_timed();
    void end_timed();
    double gpu_us() const { return gpu_us_; }  // of the last that was timed and read back
    // Submits what is recorded; nothing where nothing is.
    void flush();
    // flush() waits on the GPU until `semaphore` counts `value`: this submission and all behind it.
    void await(VkSemaphore semaphore, std::uint64_t value);
    // What that submission did is over; nothing where it was known to be.
    void finish(std::uint64_t number);

    // `done` gets the bytes at `mapped` once all submissions so far are over.
    void read(const std::byte* mapped, std::uint64_t size_bytes,
              std::function<void(Result<ByteView>)> done);
    // gpu::Device's
    void set_owner_answers(bool owner_answers);
    bool answer_read(bool wait);

    bool is_dead() const { return dead_; }
    void die(Loss loss);

  private:
    // One submission: its commands, its fence, and the bytes that wait to be copied. Reused when
    // the fence has signalled.
    struct Slot {
        VkCommandBuffer commands = VK_NULL_HANDLE;
        VkFence fence = VK_NULL_HANDLE;
        VkQueryPool times = VK_NULL_HANDLE;  // begin and end of what is timed
        bool timed = false;
        VulkanBuffer staging;
        std::uint64_t staged_bytes = 0;
        std::uint32_t reads = 0;  // readbacks that wait for its fence
        bool recording = false, submitted = false;
        std::uint64_t number = 0;
    };
    struct Wait {
        Slot* slot;
        const std::byte* mapped;
        std::uint64_t size_bytes;
        std::function<void(Result<ByteView>)> done;
    };
    struct Upload {
        const Slot* slot;
        std::uint64_t number, size_bytes;
    };

    void write_part(VulkanBuffer& target, std::uint64_t offset_bytes, ByteView bytes);
    Status make_staging(VulkanBuffer& out, std::uint64_t size_bytes);
    bool sees_device_memory() const;
    Slot& open_slot();
    Status make(Slot& slot);
    void bound_uploads(const Slot& slot);
    void wait_for_fences();
    void answer(const Wait& wait, VkResult result, double gpu_us);
    VkResult wait_for(VkFence fence);
    std::uint64_t fence_wait_ns() const;
    double time_of(const Slot& slot) const;

    const VulkanAdapter& adapter_;
    const VkDevice device_;
    const VkQueue queue_;
    const Post post_;
    VkPhysicalDeviceMemoryProperties memory_{};
    const double ns_per_tick_;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    std::deque<Slot> slots_;  // references stay valid as it grows
    std::size_t current_ = 0;
    Slot* last_submitted_ = nullptr;
    std::deque<Upload> uploads_;
    std::uint64_t submissions_ = 0, uploads_bytes_ = 0;
    std::uint64_t timed_submits_ = 0;
    // That the next submission waits for, and that one waited for.
    VkSemaphore awaited_semaphore_ = VK_NULL_HANDLE;
    std::uint64_t await_ = 0, awaited_ = 0;
    bool dead_ = false;
    double gpu_us_ = 0;
    std::atomic<double> waited_us_ = 0;  // of who waits for fences
    std::function<void(Loss)> lost_;
    LifeGuard life_;
    std::unique_ptr<VulkanAwake> awake_;

    std::mutex mutex_;  // of what follows
    std::condition_variable wake_;
    std::deque<Wait> waits_;
    bool stopping_ = false;
    bool owner_answers_ = false, waiting_ = false;  // waiting_: the waiter is, for the oldest
    std::thread waiter_;
};

}  // namespace moex::gpu
