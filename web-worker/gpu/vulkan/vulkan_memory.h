// Buffers over the C API, each with memory of its own of the kind that suits its use.
#pragma once

#include <vulkan/vulkan.h>

#include <cstddef>
#include <cstdint>

#include "protocol/result.h"

namespace moex::gpu {

enum class VulkanMemory {
    device,
    staging,
    readback,
    shared,  // the device's own, which the host writes into while kernels read it
};

struct VulkanBuffer {
    VkBuffer buffer = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
    std::uint64_t size_bytes = 0;
    std::byte* mapped = nullptr;
    bool used = false;
};

// `memory`: what the device has. no_space: it has too little of it, or, of shared, none.
Status allocate_buffer(VulkanBuffer& out, VkDevice device,
                       const VkPhysicalDeviceMemoryProperties& memory, std::uint64_t size_bytes,
                       VkBufferUsageFlags usage, VulkanMemory kind);
void free_buffer(VkDevice device, VulkanBuffer& buffer);

}  // namespace moex::gpu
