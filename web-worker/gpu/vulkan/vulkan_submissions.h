// Submits work to a device's compute queue. This class owns the commands that are being recorded,
// the bytes in staging memory that are to be copied to buffers, and the pending readbacks.
// Submissions are numbered from 1 in order. Owner: the thread of the device. A waiter thread sleeps
// on fences and posts the readbacks, unless the owner polls for them itself.
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

// The command that follows a barrier. If the barrier before a dispatch also names copies and the
// CPU, it takes 1.2 us longer on an H200: 0.6 ms for a token of 533 dispatches.
enum class Followed { by_dispatch, by_copy, by_anything };
// Makes all writes before the barrier visible to the command after it.
void barrier(VkCommandBuffer commands, Followed followed = Followed::by_anything);

class VulkanSubmissions {
  public:
    // Runs a function on the owner's thread, later.
    using Post = std::function<void(std::function<void()>)>;

    // All arguments must outlive this object. `queue` belongs to `adapter`'s compute family.
    VulkanSubmissions(const VulkanAdapter& adapter, VkDevice device, VkQueue queue, Post post);
    ~VulkanSubmissions();
    VulkanSubmissions(const VulkanSubmissions&) = delete;

    Status open();
    // Waits for the device. Readbacks that are still pending are never answered: their callbacks
    // are destroyed here, while the device still exists.
    void close();
    // Sets the keep-alive dispatches between submissions; null: none.
    void stay_awake(std::unique_ptr<VulkanAwake> awake) { awake_ = std::move(awake); }
    void on_lost(std::function<void(Loss)> handler) { lost_ = std::move(handler); }

    // These functions return the command buffer of the present submission, and its number, which
    // are valid until flush().
    VkCommandBuffer commands() { return open_slot().commands; }
    std::uint64_t next_number() const { return submissions_ + 1; }
    // Copies `bytes` to `target` through staging memory. Waits if too many bytes are in flight.
    void write(VulkanBuffer& target, std::uint64_t offset_bytes, ByteView bytes);
    // Measures the GPU's time for the commands recorded from here to end_timed(), if the device
    // supports it.
    void begin_timed();
    void end_timed();
    double gpu_us() const { return gpu_us_; }  // the last time that was measured and read back
    // Submits the recorded commands, if there are any.
    void flush();
    // Makes this submission and all later ones wait on the GPU until `semaphore` counts `value`.
    void await(VkSemaphore semaphore, std::uint64_t value);
    // Waits until submission `number` is over. Does nothing if the submission is already known to
    // be over.
    void finish(std::uint64_t number);

    // Reads from mapped memory: `done` gets the bytes at `mapped` once all submissions so far are
    // over.
    void read(const std::byte* mapped, std::uint64_t size_bytes,
              std::function<void(Result<ByteView>)> done);
    // As in gpu::Device.
    void set_owner_answers(bool owner_answers);
    bool answer_read(bool wait);

    bool is_dead() const { return dead_; }
    void die(Loss loss);

  private:
    // A submission: its commands, its fence, and the bytes in staging memory. The slot is reused
    // after the fence has signalled.
    struct Slot {
        VkCommandBuffer commands = VK_NULL_HANDLE;
        VkFence fence = VK_NULL_HANDLE;
        // Timestamps at the begin and end of the timed commands.
        VkQueryPool times = VK_NULL_HANDLE;
        bool timed = false;
        VulkanBuffer staging;
        std::uint64_t staged_bytes = 0;
        std::uint32_t reads = 0;  // readbacks that wait for this submission's fence
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
    std::deque<Slot> slots_;  // a deque, so that references to slots stay valid as it grows
    std::size_t current_ = 0;
    Slot* last_submitted_ = nullptr;
    std::deque<Upload> uploads_;
    std::uint64_t submissions_ = 0, uploads_bytes_ = 0;
    std::uint64_t timed_submits_ = 0;
    // The semaphore value that the next submission must wait for, and the highest value that an
    // earlier submission has waited for.
    VkSemaphore awaited_semaphore_ = VK_NULL_HANDLE;
    std::uint64_t await_ = 0, awaited_ = 0;
    bool dead_ = false;
    double gpu_us_ = 0;
    std::atomic<double> waited_us_ = 0;  // duration of the last wait for a fence
    std::function<void(Loss)> lost_;
    LifeGuard life_;
    std::unique_ptr<VulkanAwake> awake_;

    std::mutex mutex_;  // this mutex guards the members below
    std::condition_variable wake_;
    std::deque<Wait> waits_;
    bool stopping_ = false;
    // waiting_: the waiter thread waits for the oldest readback.
    bool owner_answers_ = false, waiting_ = false;
    std::thread waiter_;
};

}  // namespace moex::gpu
