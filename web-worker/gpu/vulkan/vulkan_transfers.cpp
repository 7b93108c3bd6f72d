#include "web-worker/gpu/vulkan/vulkan_transfers.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "protocol/thread_name.h"
#include "web-worker/gpu/vulkan/vulkan_memory.h"

namespace moex::gpu {
namespace {

// The interval at which the waiter thread checks whether it shall stop, since a copy on a lost
// device never ends.
constexpr std::uint64_t look_ns = 200'000'000;
// The `done` callbacks of copies are posted together, once per this many bytes. The next copies are
// submitted before the link is idle.
constexpr std::uint64_t posted_bytes = VulkanTransfers::busy_bytes / 2;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds copy_timeout{60};  // if a copy takes longer, the GPU is lost
constexpr VkExternalMemoryHandleTypeFlagBits host_allocation =
    VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;

template <class Function>
Status load(VkDevice device, const char* name, Function& out) {
    out = reinterpret_cast<Function>(vkGetDeviceProcAddr(device, name));
    if (out == nullptr) return Error{ErrorCode::unsupported, text("the driver has no ", name)};
    return {};
}

}  // namespace

Status VulkanTransfers::open(const VulkanAdapter& adapter) {
    MOEX_TRY(load(device_, "vkGetMemoryHostPointerPropertiesEXT", host_pointer_properties_));
    MOEX_TRY(load(device_, "vkGetSemaphoreCounterValueKHR", counter_value_));
    MOEX_TRY(load(device_, "vkWaitSemaphoresKHR", wait_semaphores_));
    vkGetPhysicalDeviceMemoryProperties(adapter.device, &memory_types_);
    page_bytes_ = adapter.shared_page_bytes;

    VkCommandPoolCreateInfo pool{.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
    pool.queueFamilyIndex = adapter.transfer_family;
    MOEX_VULKAN(vkCreateCommandPool(device_, &pool, nullptr, &pool_), "vkCreateCommandPool");

    VkSemaphoreTypeCreateInfo type{.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO};
    type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
    VkSemaphoreCreateInfo semaphore{.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
    semaphore.pNext = &type;
    MOEX_VULKAN(vkCreateSemaphore(device_, &semaphore, nullptr, &over_), "vkCreateSemaphore");

    if (!is_kernels_) giver_ = std::thread([this] { give_copies(); });
    waiter_ = std::thread([this] { wait_for_copies(); });
    return {};
}

void VulkanTransfers::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_giver_.notify_all();
    wake_waiter_.notify_all();
    if (giver_.joinable()) giver_.join();
    if (waiter_.joinable()) waiter_.join();
}

VulkanTransfers::~VulkanTransfers() {
    stop();
    vkQueueWaitIdle(queue_);
    for (const auto& [begin, memory] : memories_) free(memory);
    vkDestroySemaphore(device_, over_, nullptr);
    vkDestroyCommandPool(device_, pool_, nullptr);
}

Status VulkanTransfers::share(ByteView bytes) {
    if (bytes.empty() || bytes.size() % page_bytes_ != 0 ||
        reinterpret_cast<std::uintptr_t>(bytes.data()) % page_bytes_ != 0)
        return Error{ErrorCode::unsupported,
                     text("the GPU reads memory that lies on pages of ", page_bytes_, " bytes")};
    // The API wants a pointer to mutable memory; these copies only read it.
    void* const pointer = const_cast<std::byte*>(bytes.data());
    VkMemoryHostPointerPropertiesEXT host{
        .sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    MOEX_VULKAN(host_pointer_properties_(device_, host_allocation, pointer, &host),
                "vkGetMemoryHostPointerPropertiesEXT");

    Memory made{.bytes = bytes};
    VkExternalMemoryBufferCreateInfo external{
        .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO};
    external.handleTypes = host_allocation;
    VkBufferCreateInfo buffer{.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
    buffer.pNext = &external;
    buffer.size = bytes.size();
    buffer.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT;
    MOEX_VULKAN(vkCreateBuffer(device_, &buffer, nullptr, &made.buffer), "vkCreateBuffer");

    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(device_, made.buffer, &needs);
    const auto type = memory_type(memory_types_, needs.memoryTypeBits & host.memoryTypeBits, 0);
    VkImportMemoryHostPointerInfoEXT import{
        .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT};
    import.handleType = host_allocation;
    import.pHostPointer = pointer;
    VkMemoryAllocateInfo wanted{.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    wanted.pNext = &import;
    wanted.allocationSize = bytes.size();
    wanted.memoryTypeIndex = type.value_or(0);

    VkResult result = type && needs.size <= bytes.size()
                          ? vkAllocateMemory(device_, &wanted, nullptr, &made.memory)
                          : VK_ERROR_FEATURE_NOT_PRESENT;
    if (result == VK_SUCCESS) result = vkBindBufferMemory(device_, made.buffer, made.memory, 0);
    if (result != VK_SUCCESS) {
        free(made);
        return Error{ErrorCode::unsupported,
                     text("the GPU does not read ", bytes.size(),
                          " bytes of this process: ", vulkan_result_text(result))};
    }
    memories_[bytes.data()] = made;
    return {};
}

void VulkanTransfers::unshare(ByteView bytes) {
    const auto found = memories_.find(bytes.data());
    if (found == memories_.end()) return;
    // Wait for all copies, since any copy may read the memory that is to be freed.
    give_all();
    reached(given_, true);
    free(found->second);
    memories_.erase(found);
}

void VulkanTransfers::free(const Memory& memory) {
    vkDestroyBuffer(device_, memory.buffer, nullptr);
    vkFreeMemory(device_, memory.memory, nullptr);
}

VulkanTransfers::Memories::const_iterator VulkanTransfers::find(ByteView bytes) const {
    const auto behind = memories_.upper_bound(bytes.data());
    if (behind == memories_.begin()) return memories_.end();
    const auto found = std::prev(behind);
    const ByteView shared = found->second.bytes;
    return bytes.data() + bytes.size() <= shared.data() + shared.size() ? found : memories_.end();
}

std::uint64_t VulkanTransfers::copy(ByteView bytes, VkBuffer target, std::uint64_t offset_bytes,
                                    TransferKind kind, std::function<void()> done) {
    const Memory& source = find(bytes)->second;
    const VkBufferCopy region{static_cast<VkDeviceSize>(bytes.data() - source.bytes.data()),
                              offset_bytes, bytes.size()};
    std::uint64_t number = 0;
    {
        const std::lock_guard lock(mutex_);
        number = order_.ask(kind, bytes.size());
        asked_[number] = {0, source.buffer, target, region, std::move(done)};
        if (order_.has_next()) wake_giver_.notify_one();
    }
    if (is_kernels_) give(number);
    return number;
}

// Returns a command buffer that was used by a finished copy, or a new one.
Result<VkCommandBuffer> VulkanTransfers::commands() {
    if (!used_.empty() && reached(used_.front().place, false)) {
        const VkCommandBuffer oldest = used_.front().commands;
        used_.pop_front();
        return oldest;
    }
    VkCommandBufferAllocateInfo info{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
    info.commandPool = pool_;
    info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    info.commandBufferCount = 1;
    VkCommandBuffer made = VK_NULL_HANDLE;
    MOEX_VULKAN(vkAllocateCommandBuffers(device_, &info, &made), "vkAllocateCommandBuffers");
    return made;
}

Result<VkCommandBuffer> VulkanTransfers::record(const Asked& asked) {
    MOEX_ASSIGN(recorded, commands());
    VkCommandBufferBeginInfo begin{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
    MOEX_VULKAN(vkBeginCommandBuffer(recorded, &begin), "vkBeginCommandBuffer");
    vkCmdCopyBuffer(recorded, asked.source, asked.target, 1, &asked.region);
    MOEX_VULKAN(vkEndCommandBuffer(recorded), "vkEndCommandBuffer");
    return recorded;
}

Status VulkanTransfers::submit_next(TransferKind up_to) {
    const std::lock_guard queue_lock(queue_mutex_);
    if (refuses_) return Error{ErrorCode::device_lost, "the queue of transfers refused a copy"};
    std::vector<Asked> all;
    {
        const std::lock_guard lock(mutex_);
        settle();
        for (const std::uint64_t number : order_.take(up_to)) {
            auto asked = asked_.extract(number);
            all.push_back(std::move(asked.mapped()));
            all.back().place = order_.place(number);
        }
    }
    if (all.empty()) return {};

    if (const Status given = submit(all); !given.ok()) {
        refuses_ = true;
        refused_ = std::move(all);
        return given;
    }
    given_ = all.back().place;
    {
        const std::lock_guard lock(mutex_);
        std::uint64_t bytes = posted_bytes;
        for (Asked& asked : all) {
            if (bytes >= posted_bytes) {
                pending_.emplace_back();
                bytes = 0;
            }
            bytes += asked.region.size;
            pending_.back().last = asked.place;
            pending_.back().done.push_back(std::move(asked.done));
        }
    }
    wake_waiter_.notify_one();
    return {};
}

// Submits all copies in one call. Each copy sets the semaphore to its own count.
Status VulkanTransfers::submit(const std::vector<Asked>& all) {
    std::vector<VkCommandBuffer> recorded(all.size());
    std::vector<VkTimelineSemaphoreSubmitInfo> numbers(all.size());
    std::vector<VkSubmitInfo> infos(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        MOEX_ASSIGN(commands, record(all[i]));
        recorded[i] = commands;
        used_.push_back({commands, all[i].place});
        numbers[i] = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO};
        numbers[i].signalSemaphoreValueCount = 1;
        numbers[i].pSignalSemaphoreValues = &all[i].place;
        infos[i] = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO};
        infos[i].pNext = &numbers[i];
        infos[i].commandBufferCount = 1;
        infos[i].pCommandBuffers = &recorded[i];
        infos[i].signalSemaphoreCount = 1;
        infos[i].pSignalSemaphores = &over_;
    }
    MOEX_VULKAN(vkQueueSubmit(queue_, static_cast<std::uint32_t>(infos.size()), infos.data(),
                              VK_NULL_HANDLE),
                "vkQueueSubmit");
    return {};
}

std::uint64_t VulkanTransfers::give(std::uint64_t number) {
    std::uint64_t place = place_of(number);
    if (place > 0 && place <= given_) return place;
    {
        const std::lock_guard lock(mutex_);
        order_.hurry(number);
    }
    return give_next(TransferKind::awaited) ? place_of(number) : 0;
}

// Submits the next copies. Returns false if the queue refused these copies.
bool VulkanTransfers::give_next(TransferKind up_to) {
    const bool refused_before = refuses_;
    const Status given = submit_next(up_to);
    if (!given.ok() && !refused_before) fail(given.error());
    return given.ok();
}

void VulkanTransfers::fail(Error error) {
    post_([this, error = std::move(error), life = life_.watch()] {
        if (life.alive()) failed_(error);
    });
}

void VulkanTransfers::give_all() {
    {
        const std::lock_guard lock(mutex_);
        order_.hurry_all();
    }
    give_next(TransferKind::awaited);
}

void VulkanTransfers::wait_idle() {
    give_all();
    const std::lock_guard lock(queue_mutex_);
    vkDeviceWaitIdle(device_);
}

void VulkanTransfers::give_copies() {
    name_thread("give copies");
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            wake_giver_.wait(lock, [this] {
                settle();
                return stopping_ || order_.has_next();
            });
            if (stopping_) return;
        }
        if (!give_next(TransferKind::prefetch)) return;
    }
}

// Records the copies that are known to be over. Requires that mutex_ is locked.
void VulkanTransfers::settle() {
    order_.over(known_over_);
    settled_ = order_.settled();
}

std::uint64_t VulkanTransfers::place_of(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    return order_.place(number);
}

bool VulkanTransfers::is_over(std::uint64_t number, bool wait) {
    if (number <= settled_) return true;
    const std::uint64_t place = wait ? give(number) : place_of(number);
    return place > 0 && reached(place, wait);
}

// Returns true if the first `count` copies are over.
bool VulkanTransfers::reached(std::uint64_t count, bool wait) {
    if (count <= known_over_) return true;
    const bool waits = wait && !gave_up_;
    // Poll instead of sleeping: if two threads sleep until the same copy is over, NVIDIA's driver
    // wakes one of them 5 or 10 ms too late.
    const auto gives_up = Clock::now() + copy_timeout;
    for (;;) {
        std::uint64_t value = 0;
        if (counter_value_(device_, over_, &value) != VK_SUCCESS) return false;
        know_over(value);
        if (!waits || count <= value) return count <= value;
        if (Clock::now() >= gives_up) {
            gave_up_ = true;
            fail({ErrorCode::device_lost, "a copy to the GPU takes more than a minute"});
            return false;
        }
        std::this_thread::yield();
    }
}

// Raises known_over_ to `count`. Called from any thread.
void VulkanTransfers::know_over(std::uint64_t count) {
    std::uint64_t known = known_over_;
    while (known < count && !known_over_.compare_exchange_weak(known, count)) {}
}

void VulkanTransfers::wait_for_copies() {
    name_thread("await copies");
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_waiter_.wait(lock, [&] { return stopping_ || !pending_.empty(); });
        if (stopping_) return;
        const std::uint64_t oldest = pending_.front().last;
        lock.unlock();

        VkSemaphoreWaitInfo info{.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO};
        info.semaphoreCount = 1;
        info.pSemaphores = &over_;
        info.pValues = &oldest;
        const VkResult result = wait_semaphores_(device_, &info, look_ns);

        lock.lock();
        if (result == VK_TIMEOUT || stopping_) continue;
        if (result != VK_SUCCESS)
            return fail(
                {ErrorCode::device_lost, text("copies to the GPU: ", vulkan_result_text(result))});
        know_over(oldest);
        settle();
        if (order_.has_next()) wake_giver_.notify_one();
        // From here on the posted function, on the owner's thread, owns the callbacks and the
        // memory that they hold.
        auto done = std::make_shared<Done>(std::move(pending_.front().done));
        pending_.pop_front();
        lock.unlock();
        post_([done = std::move(done)] {
            for (const auto& one : *done) one();
        });
        lock.lock();
    }
}

}  // namespace moex::gpu
