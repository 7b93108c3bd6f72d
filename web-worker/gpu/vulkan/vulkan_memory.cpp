#include "web-worker/gpu/vulkan/vulkan_memory.h"

#include "web-worker/gpu/vulkan/vulkan_api.h"

namespace moex::gpu {

std::optional<std::uint32_t> memory_type(const VkPhysicalDeviceMemoryProperties& memory,
                                         std::uint32_t allowed, VkMemoryPropertyFlags wanted) {
    for (std::uint32_t i = 0; i < memory.memoryTypeCount; ++i)
        if ((allowed >> i & 1u) != 0 && (memory.memoryTypes[i].propertyFlags & wanted) == wanted)
            return i;
    return std::nullopt;
}

Status allocate_buffer(VulkanBuffer& out, VkDevice device,
                       const VkPhysicalDeviceMemoryProperties& memory, std::uint64_t size_bytes,
                       VkBufferUsageFlags usage, VulkanMemory kind,
                       std::span<const std::uint32_t> families) {
    VkBufferCreateInfo info{.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
    info.size = size_bytes;
    info.usage = usage;
    if (families.size() > 1) {
        info.sharingMode = VK_SHARING_MODE_CONCURRENT;
        info.queueFamilyIndexCount = static_cast<std::uint32_t>(families.size());
        info.pQueueFamilyIndices = families.data();
    }

    MOEX_VULKAN(vkCreateBuffer(device, &info, nullptr, &out.buffer), "vkCreateBuffer");
    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(device, out.buffer, &needs);

    constexpr VkMemoryPropertyFlags host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                           VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    std::optional<std::uint32_t> type;
    if (kind == VulkanMemory::shared) {
        type = memory_type(memory, needs.memoryTypeBits,
                           host | VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
        if (!type) {
            vkDestroyBuffer(device, out.buffer, nullptr);
            out.buffer = VK_NULL_HANDLE;
            return Error{ErrorCode::no_space, "no memory of the device that the host can write"};
        }
    } else if (kind == VulkanMemory::device)
        type = memory_type(memory, needs.memoryTypeBits, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    else if (kind == VulkanMemory::readback)
        type = memory_type(memory, needs.memoryTypeBits, host | VK_MEMORY_PROPERTY_HOST_CACHED_BIT);
    if (!type)
        type = memory_type(memory, needs.memoryTypeBits, kind == VulkanMemory::device ? 0 : host);

    VkMemoryAllocateInfo wanted{.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    wanted.allocationSize = needs.size;
    wanted.memoryTypeIndex = type.value_or(0);

    const VkResult allocated = vkAllocateMemory(device, &wanted, nullptr, &out.memory);
    if (allocated != VK_SUCCESS) {
        vkDestroyBuffer(device, out.buffer, nullptr);
        out.buffer = VK_NULL_HANDLE;
        return Error{ErrorCode::no_space, vulkan_result_text(allocated)};
    }

    MOEX_VULKAN(vkBindBufferMemory(device, out.buffer, out.memory, 0), "vkBindBufferMemory");
    out.size_bytes = size_bytes;
    if (kind != VulkanMemory::device) {
        void* mapped = nullptr;
        MOEX_VULKAN(vkMapMemory(device, out.memory, 0, VK_WHOLE_SIZE, 0, &mapped), "vkMapMemory");
        out.mapped = static_cast<std::byte*>(mapped);
    }
    return {};
}

void free_buffer(VkDevice device, VulkanBuffer& buffer) {
    if (buffer.buffer != VK_NULL_HANDLE) vkDestroyBuffer(device, buffer.buffer, nullptr);
    if (buffer.memory != VK_NULL_HANDLE) vkFreeMemory(device, buffer.memory, nullptr);
    buffer = {};
}

}  // namespace moex::gpu
