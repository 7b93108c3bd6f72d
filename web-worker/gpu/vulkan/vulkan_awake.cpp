#include "web-worker/gpu/vulkan/vulkan_awake.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>

namespace moex::gpu {
namespace {

using Clock = std::chrono::steady_clock;

// If other processes hold less than this share of the GPU's memory, none of them computes. Drivers
// keep some memory for themselves.
constexpr double others_share_max = 1.0 / 64;
constexpr std::chrono::seconds look_around_every{1}, begin_within{1};

bool on_battery() {
    std::error_code error;
    for (const auto& supply :
         std::filesystem::directory_iterator("/sys/class/power_supply", error)) {
        std::string status;
        if (std::ifstream(supply.path() / "status") >> status && status == "Discharging")
            return true;
    }
    return false;
}

}  // namespace

VulkanAwake::~VulkanAwake() {
    release();
    vkQueueWaitIdle(queue_);
    vkDestroyCommandPool(device_, pool_, nullptr);
    vkDestroyDescriptorPool(device_, sets_, nullptr);
    free_pipeline(device_, pipeline_);
    free_buffer(device_, words_);
}

Status VulkanAwake::open(const VulkanAdapter& adapter, bool only_alone, std::uint32_t looks) {
    physical_ = adapter.device;
    only_alone_ = only_alone;
    MOEX_ASSIGN(pipeline, compile_pipeline(device_, *find_kernel("stay_awake"), {looks}, false));
    pipeline_ = std::move(pipeline);

    VkPhysicalDeviceMemoryProperties memory{};
    vkGetPhysicalDeviceMemoryProperties(adapter.device, &memory);
    MOEX_TRY(allocate_buffer(words_, device_, memory, sizeof(std::uint32_t) * num_words,
                             VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, VulkanMemory::shared));
    std::fill_n(words_.mapped, words_.size_bytes, std::byte{0});
    MOEX_TRY(make_set());
    return record(adapter.queue_family);
}

Status VulkanAwake::make_set() {
    const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1};
    VkDescriptorPoolCreateInfo pool{.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
    pool.maxSets = 1;
    pool.poolSizeCount = 1;
    pool.pPoolSizes = &size;
    MOEX_VULKAN(vkCreateDescriptorPool(device_, &pool, nullptr, &sets_), "vkCreateDescriptorPool");

    VkDescriptorSetAllocateInfo wanted{.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
    wanted.descriptorPool = sets_;
    wanted.descriptorSetCount = 1;
    wanted.pSetLayouts = &pipeline_.set_layout;
    MOEX_VULKAN(vkAllocateDescriptorSets(device_, &wanted, &set_), "vkAllocateDescriptorSets");

    const VkDescriptorBufferInfo words{words_.buffer, 0, VK_WHOLE_SIZE};
    VkWriteDescriptorSet write{.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    write.dstSet = set_;
    write.descriptorCount = 1;
    write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    write.pBufferInfo = &words;
    vkUpdateDescriptorSets(device_, 1, &write, 0, nullptr);
    return {};
}

// Records the keep-alive commands once. They are submitted again and again, also while an earlier
// submission runs.
Status VulkanAwake::record(std::uint32_t queue_family) {
    VkCommandPoolCreateInfo pool{.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    pool.queueFamilyIndex = queue_family;
    MOEX_VULKAN(vkCreateCommandPool(device_, &pool, nullptr, &pool_), "vkCreateCommandPool");

    VkCommandBufferAllocateInfo wanted{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
    wanted.commandPool = pool_;
    wanted.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    wanted.commandBufferCount = 1;
    MOEX_VULKAN(vkAllocateCommandBuffers(device_, &wanted, &commands_), "vkAllocateCommandBuffers");

    VkCommandBufferBeginInfo begin{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    begin.flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT;
    MOEX_VULKAN(vkBeginCommandBuffer(commands_, &begin), "vkBeginCommandBuffer");
    // Wait until the previous workgroup has ended: this workgroup reads the count that it wrote.
    VkMemoryBarrier counted{.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER};
    counted.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
    counted.dstAccessMask = VK_ACCESS_SHADER_READ_BIT;
    vkCmdPipelineBarrier(commands_, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                         VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &counted, 0, nullptr, 0,
                         nullptr);
    vkCmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_.pipeline);
    vkCmdBindDescriptorSets(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_.layout, 0, 1,
                            &set_, 0, nullptr);
    vkCmdDispatch(commands_, 1, 1, 1);
    MOEX_VULKAN(vkEndCommandBuffer(commands_), "vkEndCommandBuffer");
    return {};
}

std::uint32_t* VulkanAwake::words() const {
    return reinterpret_cast<std::uint32_t*>(words_.mapped);
}

bool VulkanAwake::has_begun() const {
    return std::atomic_ref(words()[begun]).load(std::memory_order_acquire) == num_followed_;
}

// Measures the time in ms from the begin to the end of one keep-alive workgroup, with or without
// release().
double VulkanAwake::end_ms(bool release_it) {
    const auto submitted = Clock::now();
    follow();
    while (!has_begun() && Clock::now() - submitted < begin_within) {}

    const auto began = Clock::now();
    if (release_it) release();
    vkQueueWaitIdle(queue_);
    const auto ended = Clock::now();
    release();
    return std::chrono::duration<double, std::milli>(ended - began).count();
}

bool VulkanAwake::ends_when_told() {
    may_ = true;
    looked_at_ = Clock::now();
    end_ms(true);  // warm-up: the driver needs longer for the first submission
    const double on_its_own_ms = end_ms(false), told_ms = end_ms(true);
    looked_at_ = {};
    return told_ms * 4 < on_its_own_ms;
}

void VulkanAwake::follow() {
    if (following_ || !may_follow()) return;
    VkSubmitInfo info{.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO};
    info.commandBufferCount = 1;
    info.pCommandBuffers = &commands_;
    if (vkQueueSubmit(queue_, 1, &info, VK_NULL_HANDLE) != VK_SUCCESS) return;
    ++num_followed_;
    following_ = true;
}

void VulkanAwake::release() {
    if (!following_) return;
    following_ = false;
    std::atomic_ref(words()[released]).store(num_followed_, std::memory_order_release);
#if defined(__x86_64__)
    __builtin_ia32_sfence();  // flushes write-combined writes to device memory
#endif
}

bool VulkanAwake::may_follow() {
    const auto now = Clock::now();
    if (now - looked_at_ >= look_around_every) {
        looked_at_ = now;
        may_ = !only_alone_ || (is_alone(physical_, others_share_max) && !on_battery());
    }
    return may_;
}

}  // namespace moex::gpu
