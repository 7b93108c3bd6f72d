// Implements gpu::Device over Vulkan 1.1 compute, for the native worker: the same kernels as
// SPIR-V. All calls are made on one thread. A waiter thread sleeps on fences and posts completions
// through `post`, unless the owner polls for them itself. Transfers have threads of their own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "web-worker/gpu/device.h"

namespace moex::gpu {

// Selects the kernels that clamp their array indices, as in a browser. Clamping costs a good kernel
// a third of its speed.
enum class RobustAccess {
    always,
    // All kernels except those with indices that the CPU checked, if the driver can set this for
    // each pipeline (VK_EXT_pipeline_robustness); otherwise all kernels, as for `always`.
    unless_checked,
    never,
};

// Keep-alive dispatches between pieces of work, so that the GPU's clock stays up
// (web-worker/gpu/vulkan/vulkan_awake.h).
enum class StayAwake {
    never,
    alone,   // only while no other process uses the GPU, and not on battery or a software device
    always,  // for tests
};

struct VulkanOptions {
    // The index of the device, or a part of its name. Empty: the first device that is no software
    // rasteriser, else the first device.
    std::string device;
    RobustAccess robust_access = RobustAccess::unless_checked;
    StayAwake stay_awake = StayAwake::never;
};

// Runs a function on the owner's thread, later. Called from the device's threads and by the owner.
using PostFunction = std::function<void(std::function<void()>)>;

Result<std::unique_ptr<Device>> open_vulkan_device(const VulkanOptions& options, PostFunction post);
// Returns the names of all devices with a compute queue. Returns unavailable if there is no Vulkan
// loader or driver.
Result<std::vector<std::string>> list_vulkan_devices();

}  // namespace moex::gpu
