// Vulkan buffers. Each buffer has a memory allocation of its own, of the memory type that suits its
// use.
#pragma once

#include <vulkan/vulkan.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/result.h"

namespace moex::gpu {

enum class VulkanMemory {
    device,
    staging,
    readback,
    shared,  // device memory that the CPU writes while kernels read it
};

struct VulkanBuffer {
    VkBuffer buffer = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
    std::uint64_t size_bytes = 0;
    std::byte* mapped = nullptr;
    bool used = false;
    // Number of the last submission that copied to this buffer; 0: none.
    std::uint64_t written_by = 0;
};

// Returns the first memory type in the mask `allowed` that has all properties in `wanted`.
std::optional<std::uint32_t> memory_type(const VkPhysicalDeviceMemoryProperties& memory,
                                         std::uint32_t allowed, VkMemoryPropertyFlags wanted);

// `memory`: the memory types of the device. `families`: the queue families that use the buffer, if
// there are several. Returns no_space if the device has too little memory, or no `shared` memory.
Status allocate_buffer(VulkanBuffer& out, VkDevice device,
                       const VkPhysicalDeviceMemoryProperties& memory, std::uint64_t size_bytes,
                       VkBufferUsageFlags usage, VulkanMemory kind,
                       std::span<const std::uint32_t> families = {});
void free_buffer(VkDevice device, VulkanBuffer& buffer);

}  // namespace moex::gpu
