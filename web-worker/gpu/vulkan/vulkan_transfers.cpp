#include "web-worker/gpu/vulkan/vulkan_transfers.h"

#include <chrono>
#include <optional>
#include <utility>

#include "web-worker/gpu/vulkan/vulkan_memory.h"

namespace moex::gpu {
namespace {

// The waiter looks so often whether it shall stop: a copy that a lost device never ends is not
// waited for any longer.
constexpr std::uint64_t look_ns = 200'000'000;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds patience{60};  // a GPU that takes longer is lost
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

    waiter_ = std::thread([this] { wait_for_copies(); });
    return {};
}

VulkanTransfers::~VulkanTransfers() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    if (waiter_.joinable()) waiter_.join();

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
    // The API takes it as what may be written; these copies only read.
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
    is_over(last_, true);
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

// One whose copy is over, or a new one.
Result<VkCommandBuffer> VulkanTransfers::commands() {
    if (!used_.empty() && is_over(used_.front().number)) {
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

Result<std::uint64_t> VulkanTransfers::copy(ByteView bytes, VkBuffer target,
                                            std::uint64_t offset_bytes,
                                            std::function<void()> done) {
    const Memory& source = find(bytes)->second;
    MOEX_ASSIGN(recorded, commands());
    VkCommandBufferBeginInfo begin{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
    MOEX_VULKAN(vkBeginCommandBuffer(recorded, &begin), "vkBeginCommandBuffer");
    const VkBufferCopy region{static_cast<VkDeviceSize>(bytes.data() - source.bytes.data()),
                              offset_bytes, bytes.size()};
    vkCmdCopyBuffer(recorded, source.buffer, target, 1, &region);
    MOEX_VULKAN(vkEndCommandBuffer(recorded), "vkEndCommandBuffer");

    const std::uint64_t number = last_ + 1;
    VkTimelineSemaphoreSubmitInfo timeline{
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO};
    timeline.signalSemaphoreValueCount = 1;
    timeline.pSignalSemaphoreValues = &number;
    VkSubmitInfo info{.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO};
    info.pNext = &timeline;
    info.commandBufferCount = 1;
    info.pCommandBuffers = &recorded;
    info.signalSemaphoreCount = 1;
    info.pSignalSemaphores = &over_;
    MOEX_VULKAN(vkQueueSubmit(queue_, 1, &info, VK_NULL_HANDLE), "vkQueueSubmit");

    last_ = number;
    used_.push_back({recorded, number});
    {
        const std::lock_guard lock(mutex_);
        pending_.push_back({number, std::move(done)});
    }
    wake_.notify_one();
    return number;
}

bool VulkanTransfers::is_over(std::uint64_t number, bool wait) {
    if (number <= known_over_) return true;
    // It looks instead of sleeping: where two threads sleep until the same copy is over, NVIDIA's
    // driver wakes one of them 5 or 10 ms later.
    const auto gives_up = Clock::now() + patience;
    do {
        std::uint64_t value = 0;
        if (counter_value_(device_, over_, &value) != VK_SUCCESS) return false;
        known_over_ = value;
        if (!wait || number <= known_over_) break;
        std::this_thread::yield();
    } while (Clock::now() < gives_up);
    return number <= known_over_;
}

void VulkanTransfers::wait_for_copies() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return stopping_ || !pending_.empty(); });
        if (stopping_) return;
        const std::uint64_t oldest = pending_.front().number;
        lock.unlock();

        VkSemaphoreWaitInfo info{.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO};
        info.semaphoreCount = 1;
        info.pSemaphores = &over_;
        info.pValues = &oldest;
        const VkResult result = wait_semaphores_(device_, &info, look_ns);

        lock.lock();
        if (result == VK_TIMEOUT || stopping_) continue;
        if (result != VK_SUCCESS) return;  // the device is lost: its owner learns it elsewhere
        std::function<void()> done = std::move(pending_.front().done);
        pending_.pop_front();
        lock.unlock();
        if (done) post_(std::move(done));
        lock.lock();
    }
}

}  // namespace moex::gpu
