// Small help over the C API: errors as values, an instance, the choice of a device.
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

// A compute-capable physical device.
struct VulkanAdapter {
    VkPhysicalDevice device = VK_NULL_HANDLE;
    VkPhysicalDeviceProperties properties{};
    std::string driver;
    std::uint32_t queue_family = 0;
    // Whose queues copy beside the kernels; the other one's where the device has none of its own.
    std::uint32_t transfer_family = 0;
    // It reads memory of this process, which lies on pages of so many bytes; 0: it does not.
    std::uint64_t shared_page_bytes = 0;
    bool has_timestamps = false;
    bool has_pipeline_robustness = false;
    bool has_memory_budget = false;  // it says what other processes leave
    std::uint64_t memory_bytes = 0;  // of the device's own that is free for this process
    bool software = false;
};

// The process's instance; made at first use and kept.
Result<VkInstance> vulkan_instance();
Result<std::vector<VulkanAdapter>> vulkan_adapters();
// Whether other processes, and the driver for itself, hold at most `share` of the device's memory,
// or `bytes` of it. Requires VulkanAdapter::has_memory_budget. An H200 that nobody uses has 662 MB
// taken, and 166 MB more for a process of 128.
bool is_alone(VkPhysicalDevice device, double share, std::uint64_t bytes = 0);
// By index or part of a name; "": the first that is no software, else the first.
Result<VulkanAdapter> choose_vulkan_adapter(const std::string& wanted);
// Which of devices with these names: a number of one or two digits is an index and nothing else
// ("1" is part of "H100", too); anything else, the first whose name it is part of.
Result<std::size_t> find_device(std::span<const std::string> names, const std::string& wanted);

}  // namespace moex::gpu

#define MOEX_VULKAN(call, what)                                                            \
    do {                                                                                   \
        if (const VkResult moex_result_ = (call); moex_result_ != VK_SUCCESS)              \
            return Error{moex_result_ == VK_ERROR_DEVICE_LOST ? ErrorCode::device_lost     \
                                                              : ErrorCode::unavailable,    \
                         text(what, ": ", ::moex::gpu::vulkan_result_text(moex_result_))}; \
    } while (false)
