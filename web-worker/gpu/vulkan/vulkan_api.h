// Helpers over Vulkan's C API: errors as values, the instance, the choice of a device.
#pragma once

#include <vulkan/vulkan.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocol/result.h"
#include "protocol/text.h"

namespace moex::gpu {

std::string vulkan_result_text(VkResult result);

// A physical device that can run compute kernels, and what it supports.
struct VulkanAdapter {
    VkPhysicalDevice device = VK_NULL_HANDLE;
    VkPhysicalDeviceProperties properties{};
    std::string driver;
    std::uint32_t queue_family = 0;
    // The family of queues that copy while kernels run; queue_family if the device has no such
    // family.
    std::uint32_t transfer_family = 0;
    // The page size of process memory that the device can read; 0: the device cannot read process
    // memory.
    std::uint64_t shared_page_bytes = 0;
    bool has_timestamps = false;
    bool has_pipeline_robustness = false;
    // The driver reports how much memory other processes leave free.
    bool has_memory_budget = false;
    std::uint64_t memory_bytes = 0;  // device memory that is free for this process
    bool software = false;
};

// Returns the process's Vulkan instance, created at first use and kept.
Result<VkInstance> vulkan_instance();
Result<std::vector<VulkanAdapter>> vulkan_adapters();
// Returns true if other processes and the driver together hold at most `share` of the device's
// memory, or at most `bytes`. Requires VulkanAdapter::has_memory_budget. On an H200 without other
// users 662 MB are taken, and a process that uses 128 MB takes another 166 MB.
bool is_alone(VkPhysicalDevice device, double share, std::uint64_t bytes = 0);
// Chooses a device by its index or a part of its name. An empty name chooses the first device that
// is no software device, else the first device.
Result<VulkanAdapter> choose_vulkan_adapter(const std::string& wanted);
// Returns the index of the device that `wanted` names. A number of one or two digits is always an
// index ("1" would also match "H100"). Any other text selects the first device with a name that
// contains the text.
Result<std::size_t> find_device(std::span<const std::string> names, const std::string& wanted);

}  // namespace moex::gpu

#define MOEX_VULKAN(call, what)                                                            \
    do {                                                                                   \
        if (const VkResult moex_result_ = (call); moex_result_ != VK_SUCCESS)              \
            return Error{moex_result_ == VK_ERROR_DEVICE_LOST ? ErrorCode::device_lost     \
                                                              : ErrorCode::unavailable,    \
                         text(what, ": ", ::moex::gpu::vulkan_result_text(moex_result_))}; \
    } while (false)
