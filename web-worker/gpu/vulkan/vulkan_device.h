// gpu::Device over Vulkan 1.1 compute, for the native worker: the same kernels, as SPIR-V.
// All calls come from one thread; a waiter thread sleeps on fences and posts completions back
// through `post`, unless the owner looks for them itself. Transfers have threads of their own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "web-worker/gpu/device.h"

namespace moex::gpu {

// Whether kernels clamp their indices, as in a browser. It costs a good kernel a third.
enum class RobustAccess {
    always,
    // not those whose indices the host checked, where the driver lets one pipeline differ from
    // another (VK_EXT_pipeline_robustness); elsewhere as always
    unless_checked,
    never,
};

// Whether the GPU computes between pieces of work, so that its clock stays up
// (web-worker/gpu/vulkan/vulkan_awake.h).
enum class StayAwake {
    never,
    alone,   // while nobody else uses it and it hangs on no battery; never on a software one
    always,  // for tests
};

struct VulkanOptions {
    // index, or part of the name; empty: the first that
    // is not a software rasteriser, else the first
    std::string device;
    RobustAccess robust_access = RobustAccess::unless_checked;
    StayAwake stay_awake = StayAwake::never;
};

// Runs a function on the owner's thread, later. Called from the device's threads and by the owner.
using PostFunction = std::function<void(std::function<void()>)>;

Result<std::unique_ptr<Device>> open_vulkan_device(const VulkanOptions& options, PostFunction post);
// Names of all devices with a compute queue; unavailable when there is no Vulkan loader or driver.
Result<std::vector<std::string>> list_vulkan_devices();

}  // namespace moex::gpu
