// Buffers over the C API, each with memory of its own of the kind that suits its use.
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
    shared,  // the device's own, which the host writes into while kernels read it
};

struct VulkanBuffer {
    VkBuffer buffer = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
    std::uint64_t size_bytes = 0;
    std::byte* mapped = nullptr;
    bool used = false;
    std::uint64_t written_by = 0;  // the last submission that copied to it; 0: none
};

// The first of the types `allowed` that has all of `wanted`.
std::optional<std::uint32_t> memory_type(const VkPhysicalDeviceMemoryProperties& memory,
                                         std::uint32_t allowed, VkMemoryPropertyFlags wanted);

// `memory`: what the device has. `families`: whose queues use it, where they are several. no_space:
// it has too little of it, or, of shared, none.
Status allocate_buffer(VulkanBuffer& out, VkDevice device,
                       const VkPhysicalDeviceMemoryProperties& memory, std::uint64_t size_bytes,
                       VkBufferUsageFlags usage, VulkanMemory kind,
                       std::span<const std::uint32_t> families = {});
void free_buffer(VkDevice device, VulkanBuffer& buffer);

}  // namespace moex::gpu
