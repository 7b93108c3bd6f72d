#include "web-worker/gpu/vulkan/vulkan_submissions.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "protocol/thread_name.h"

namespace moex::gpu {
namespace {

constexpr std::uint64_t staging_bytes_min = 4u << 20;
// The most staging buffers of staging_bytes_min bytes in the GPU's own memory.
constexpr std::size_t device_staging_max = 8;
// If more bytes than this are staged, the commands recorded so far are submitted at once.
constexpr std::uint64_t staging_bytes_max = 64u << 20;
// The most bytes of uploads in flight. A further upload waits until an earlier one is over, so that
// a whole model never fills staging buffers, however slowly the GPU copies it.
constexpr std::uint64_t uploads_bytes_max = 256u << 20, upload_bytes_min = 1u << 20;
// A sleeping wait costs more time than most rounds take. The wait therefore spins for twice the
// time of the previous wait, within these bounds. A spin that ends just before the GPU does would
// cost the time of the spin and of the sleep.
constexpr double spin_us_min = 150, spin_us_max = 2000;
// Of this number of submissions one is timed: timestamps and their readback cost time.
constexpr std::uint64_t submits_per_time = 16;
// If a submission takes more seconds than this, the GPU counts as lost. A software device also
// compiles a kernel within the first submission that runs it: on a busy machine with an empty cache
// this took minutes.
constexpr std::uint64_t fence_wait_s = 60, fence_wait_software_s = 900;

Loss lost_to(VkResult result) { return {LossKind::other, vulkan_result_text(result)}; }

}  // namespace

void barrier(VkCommandBuffer commands, Followed followed) {
    constexpr VkAccessFlags shader = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                                     VK_ACCESS_UNIFORM_READ_BIT,
                            transfer = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
    constexpr VkPipelineStageFlags compute = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                   copies = VK_PIPELINE_STAGE_TRANSFER_BIT;
    VkMemoryBarrier memory{.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER};
    memory.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
    VkPipelineStageFlags next = compute;
    if (followed == Followed::by_dispatch) {
        memory.dstAccessMask = shader;
    } else if (followed == Followed::by_copy) {
        memory.dstAccessMask = transfer;
        next = copies;
    } else {
        memory.dstAccessMask = shader | transfer | VK_ACCESS_HOST_READ_BIT;
        next = compute | copies | VK_PIPELINE_STAGE_HOST_BIT;
    }
    vkCmdPipelineBarrier(commands, compute | copies, next, 0, 1, &memory, 0, nullptr, 0, nullptr);
}

VulkanSubmissions::VulkanSubmissions(const VulkanAdapter& adapter, VkDevice device, VkQueue queue,
                                     Post post)
    : adapter_(adapter),
      device_(device),
      queue_(queue),
      post_(std::move(post)),
      ns_per_tick_(adapter.has_timestamps ? adapter.properties.limits.timestampPeriod : 0) {}

Status VulkanSubmissions::open() {
    vkGetPhysicalDeviceMemoryProperties(adapter_.device, &memory_);
    VkCommandPoolCreateInfo pool{.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
    pool.queueFamilyIndex = adapter_.queue_family;
    MOEX_VULKAN(vkCreateCommandPool(device_, &pool, nullptr, &pool_), "vkCreateCommandPool");
    waiter_ = std::thread([this] { wait_for_fences(); });
    return {};
}

void VulkanSubmissions::close() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    if (waiter_.joinable()) waiter_.join();
    awake_.reset();
    vkDeviceWaitIdle(device_);
    waits_.clear();
}

VulkanSubmissions::~VulkanSubmissions() {
    close();
    for (Slot& slot : slots_) {
        vkDestroyFence(device_, slot.fence, nullptr);
        vkDestroyQueryPool(device_, slot.times, nullptr);
        free_buffer(device_, slot.staging);
    }
    vkDestroyCommandPool(device_, pool_, nullptr);
}

void VulkanSubmissions::write(VulkanBuffer& target, std::uint64_t offset_bytes, ByteView bytes) {
    while (!bytes.empty()) {
        const ByteView part = bytes.first(std::min<std::size_t>(bytes.size(), staging_bytes_max));
        write_part(target, offset_bytes, part);
        offset_bytes += part.size();
        bytes = bytes.subspan(part.size());
    }
}

void VulkanSubmissions::write_part(VulkanBuffer& target, std::uint64_t offset_bytes,
                                   ByteView bytes) {
    if (slots_.size() > current_ && slots_[current_].recording &&
        slots_[current_].staged_bytes + bytes.size() > staging_bytes_max)
        flush();
    Slot& slot = open_slot();
    if (slot.staging.size_bytes < slot.staged_bytes + bytes.size()) {
        // Submit the commands recorded so far, which use the old staging buffer. Then grow the
        // staging buffer of a new slot.
        if (slot.staged_bytes > 0) {
            flush();
            return write_part(target, offset_bytes, bytes);
        }
        if (dead_) return;
        free_buffer(device_, slot.staging);
        std::uint64_t size_bytes = staging_bytes_min;
        while (size_bytes < bytes.size()) size_bytes *= 2;
        const Status made = make_staging(slot.staging, size_bytes);
        if (!made.ok()) return die(loss_of(made.error()));
    }

    // The staging memory is written from front to back and never read: it may be device memory.
    std::memcpy(slot.staging.mapped + slot.staged_bytes, bytes.data(), bytes.size());
    const VkBufferCopy region{slot.staged_bytes, offset_bytes, bytes.size()};
    vkCmdCopyBuffer(slot.commands, slot.staging.buffer, target.buffer, 1, &region);
    target.written_by = next_number();
    slot.staged_bytes += (bytes.size() + 15) / 16 * 16;
    // Submit a large upload now, so that its copy runs while the next upload is staged.
    if (slot.staged_bytes >= upload_bytes_min) flush();
}

// Makes a staging buffer. A small one is in device memory if the CPU can map all device memory:
// writing an expert then takes two thirds of the time, and a round's rows are already on the
// device. Only the first few buffers are in device memory, which is for the experts.
Status VulkanSubmissions::make_staging(VulkanBuffer& out, std::uint64_t size_bytes) {
    if (size_bytes == staging_bytes_min && slots_.size() <= device_staging_max &&
        sees_device_memory()) {
        const Status made = allocate_buffer(out, device_, memory_, size_bytes,
                                            VK_BUFFER_USAGE_TRANSFER_SRC_BIT, VulkanMemory::shared);
        if (made.ok()) return {};
        free_buffer(device_, out);
    }
    return allocate_buffer(out, device_, memory_, size_bytes, VK_BUFFER_USAGE_TRANSFER_SRC_BIT,
                           VulkanMemory::staging);
}

// Returns true if the CPU can map all device memory, not only a small window of it (256 MiB) that
// other programs also need.
bool VulkanSubmissions::sees_device_memory() const {
    constexpr std::uint64_t window_bytes = 256u << 20;
    constexpr VkMemoryPropertyFlags both = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT |
                                           VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                           VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const auto type = memory_type(memory_, ~0u, both);
    return !adapter_.software && type &&
           memory_.memoryHeaps[memory_.memoryTypes[*type].heapIndex].size > window_bytes;
}

// Returns the submission slot that records commands now. If no slot records, this function takes a
// finished slot or makes a new one. It never waits.
VulkanSubmissions::Slot& VulkanSubmissions::open_slot() {
    if (current_ < slots_.size() && slots_[current_].recording) return slots_[current_];

    current_ = slots_.size();
    for (std::size_t i = 0; i < slots_.size(); ++i)
        if (!slots_[i].submitted ||
            (slots_[i].reads == 0 && vkGetFenceStatus(device_, slots_[i].fence) == VK_SUCCESS)) {
            current_ = i;
            break;
        }
    if (current_ == slots_.size()) {
        slots_.emplace_back();
        if (const Status made = make(slots_.back()); !made.ok()) die(loss_of(made.error()));
    }

    Slot& slot = slots_[current_];
    if (slot.submitted) vkResetFences(device_, 1, &slot.fence);
    slot.submitted = false;
    slot.staged_bytes = 0;
    slot.recording = true;
    slot.timed = false;
    if (awake_) awake_->release();

    VkCommandBufferBeginInfo begin{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
    vkBeginCommandBuffer(slot.commands, &begin);
    return slot;
}

Status VulkanSubmissions::make(Slot& slot) {
    VkCommandBufferAllocateInfo info{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
    info.commandPool = pool_;
    info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    info.commandBufferCount = 1;
    MOEX_VULKAN(vkAllocateCommandBuffers(device_, &info, &slot.commands),
                "vkAllocateCommandBuffers");
    VkFenceCreateInfo fence{.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    MOEX_VULKAN(vkCreateFence(device_, &fence, nullptr, &slot.fence), "vkCreateFence");

    VkQueryPoolCreateInfo times{.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
    times.queryType = VK_QUERY_TYPE_TIMESTAMP;
    times.queryCount = 2;
    if (ns_per_tick_ > 0) vkCreateQueryPool(device_, &times, nullptr, &slot.times);
    return {};
}

void VulkanSubmissions::begin_timed() {
    Slot& slot = open_slot();
    slot.timed = slot.times != VK_NULL_HANDLE && timed_submits_++ % submits_per_time == 0;
    if (!slot.timed) return;
    vkCmdResetQueryPool(slot.commands, slot.times, 0, 2);
    vkCmdWriteTimestamp(slot.commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, slot.times, 0);
}

void VulkanSubmissions::end_timed() {
    const Slot& slot = open_slot();
    if (slot.timed)
        vkCmdWriteTimestamp(slot.commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, slot.times, 1);
}

void VulkanSubmissions::await(VkSemaphore semaphore, std::uint64_t value) {
    awaited_semaphore_ = semaphore;
    await_ = std::max(await_, value);
}

void VulkanSubmissions::flush() {
    if (current_ >= slots_.size() || !slots_[current_].recording) return;
    Slot& slot = slots_[current_];
    barrier(slot.commands);
    vkEndCommandBuffer(slot.commands);

    VkSubmitInfo info{.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO};
    info.commandBufferCount = 1;
    info.pCommandBuffers = &slot.commands;

    VkTimelineSemaphoreSubmitInfo timeline{
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO};
    const VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    if (await_ > awaited_) {
        awaited_ = await_;
        timeline.waitSemaphoreValueCount = 1;
        timeline.pWaitSemaphoreValues = &awaited_;
        info.pNext = &timeline;
        info.waitSemaphoreCount = 1;
        info.pWaitSemaphores = &awaited_semaphore_;
        info.pWaitDstStageMask = &all;
    }
    const VkResult result = vkQueueSubmit(queue_, 1, &info, slot.fence);

    slot.recording = false;
    slot.submitted = true;
    slot.number = ++submissions_;
    last_submitted_ = &slot;
    if (result != VK_SUCCESS) return die(lost_to(result));
    if (slot.staged_bytes >= upload_bytes_min) bound_uploads(slot);
}

void VulkanSubmissions::finish(std::uint64_t number) {
    if (number > submissions_) flush();
    for (const Slot& slot : slots_)
        if (slot.submitted && slot.number == number)
            vkWaitForFences(device_, 1, &slot.fence, VK_TRUE, fence_wait_ns());
}

void VulkanSubmissions::bound_uploads(const Slot& slot) {
    uploads_.push_back({&slot, slot.number, slot.staged_bytes});
    uploads_bytes_ += slot.staged_bytes;
    while (uploads_bytes_ > uploads_bytes_max) {
        const Upload oldest = uploads_.front();
        uploads_.pop_front();
        uploads_bytes_ -= oldest.size_bytes;
        // If the slot was reused for another submission, this upload is over already.
        if (oldest.slot->submitted && oldest.slot->number == oldest.number)
            vkWaitForFences(device_, 1, &oldest.slot->fence, VK_TRUE, fence_wait_ns());
    }
}

void VulkanSubmissions::read(const std::byte* mapped, std::uint64_t size_bytes,
                             std::function<void(Result<ByteView>)> done) {
    flush();
    if (dead_ || last_submitted_ == nullptr) {
        post_([done = std::move(done)] {
            done(Error{ErrorCode::device_lost, "the Vulkan device is lost"});
        });
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        waits_.push_back({last_submitted_, mapped, size_bytes, std::move(done)});
    }
    ++last_submitted_->reads;
    if (!owner_answers_) wake_.notify_one();
    if (awake_) awake_->follow();
}

void VulkanSubmissions::set_owner_answers(bool owner_answers) {
    {
        const std::lock_guard lock(mutex_);
        owner_answers_ = owner_answers;
    }
    if (!owner_answers) wake_.notify_one();
}

bool VulkanSubmissions::answer_read(bool wait) {
    Wait oldest;
    {
        const std::lock_guard lock(mutex_);
        if (!owner_answers_ || waiting_ || waits_.empty()) return false;
        if (!wait && vkGetFenceStatus(device_, waits_.front().slot->fence) == VK_NOT_READY)
            return false;
        oldest = std::move(waits_.front());
        waits_.pop_front();
    }
    const VkResult result = wait_for(oldest.slot->fence);
    answer(oldest, result, result == VK_SUCCESS ? time_of(*oldest.slot) : 0);
    return true;
}

void VulkanSubmissions::wait_for_fences() {
    name_thread("await GPU");
    for (;;) {
        Wait wait;
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return stopping_ || (!owner_answers_ && !waits_.empty()); });
            if (stopping_) return;
            wait = std::move(waits_.front());
            waits_.pop_front();
            waiting_ = true;
        }
        const VkResult result = wait_for(wait.slot->fence);
        const double gpu_us = result == VK_SUCCESS ? time_of(*wait.slot) : 0;
        post_([this, wait = std::move(wait), result, gpu_us, life = life_.watch()]() mutable {
            if (life.alive()) answer(wait, result, gpu_us);
        });
        const std::lock_guard lock(mutex_);
        waiting_ = false;
    }
}

// Calls the callback of a finished readback. Runs on the owner's thread.
void VulkanSubmissions::answer(const Wait& wait, VkResult result, double gpu_us) {
    --wait.slot->reads;
    if (result == VK_SUCCESS) {
        if (gpu_us > 0) gpu_us_ = gpu_us;
        return wait.done(ByteView(wait.mapped, wait.size_bytes));
    }
    wait.done(Error{ErrorCode::device_lost, vulkan_result_text(result)});
    if (result != VK_TIMEOUT) return die(lost_to(result));
    die({LossKind::other,
         text("a submission did not finish within ", fence_wait_ns() / 1'000'000'000, " s")});
}

// Waits for a fence, on any thread: spins while the answer is likely to be near, then sleeps.
VkResult VulkanSubmissions::wait_for(VkFence fence) {
    using Clock = std::chrono::steady_clock;
    const auto began = Clock::now();
    const auto spin = std::chrono::duration<double, std::micro>(
        std::clamp(2 * waited_us_, spin_us_min, spin_us_max));
    VkResult result = VK_NOT_READY;
    if (!adapter_.software)
        while (result == VK_NOT_READY && Clock::now() - began < spin)
            result = vkGetFenceStatus(device_, fence);
    if (result == VK_NOT_READY)
        result = vkWaitForFences(device_, 1, &fence, VK_TRUE, fence_wait_ns());
    waited_us_ = std::chrono::duration<double, std::micro>(Clock::now() - began).count();
    return result;
}

std::uint64_t VulkanSubmissions::fence_wait_ns() const {
    return (adapter_.software ? fence_wait_software_s : fence_wait_s) * 1'000'000'000;
}

double VulkanSubmissions::time_of(const Slot& slot) const {
    std::uint64_t ticks[2] = {0, 0};
    if (!slot.timed || vkGetQueryPoolResults(device_, slot.times, 0, 2, sizeof ticks, ticks,
                                             sizeof ticks[0], VK_QUERY_RESULT_64_BIT) != VK_SUCCESS)
        return 0;
    return static_cast<double>(ticks[1] - ticks[0]) * ns_per_tick_ / 1000;
}

void VulkanSubmissions::die(Loss loss) {
    if (std::exchange(dead_, true)) return;
    if (lost_) post_([handler = lost_, loss = std::move(loss)] { handler(loss); });
}

}  // namespace moex::gpu
