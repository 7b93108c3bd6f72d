// gpu::Device over Vulkan 1.1 compute, for the native worker: the same kernels, as SPIR-V.
// All calls come from one thread; a waiter thread sleeps
// on fences and posts completions back through `post`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "web-worker/gpu/device.h"

namespace moex::gpu {

struct VulkanOptions {
    // index, or part of the name; empty: the first that
    // is not a software rasteriser, else the first
    std::string device;
    bool robust_access = true;  // kernels clamp as in a browser; no measurable cost
};

// Runs a function on the owner's thread, later. Called from the waiter thread.
using PostFunction = std::function<void(std::function<void()>)>;

Result<std::unique_ptr<Device>> open_vulkan_device(const VulkanOptions& options, PostFunction post);
// Names of all devices with a compute queue; unavailable when there is no Vulkan loader or driver.
Result<std::vector<std::string>> list_vulkan_devices();

}  // namespace moex::gpu
