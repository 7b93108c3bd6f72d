// A kernel compiled for a device: its SPIR-V, made by the build, with its constants.
#pragma once

#include <vulkan/vulkan.h>

#include <cstdint>
#include <vector>

#include "protocol/result.h"
#include "web-worker/gpu/kernel_source.h"

namespace moex::gpu {

struct VulkanPipeline {
    VkPipeline pipeline = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;
    VkDescriptorSetLayout set_layout = VK_NULL_HANDLE;
    VkShaderModule module = VK_NULL_HANDLE;
    std::vector<BindingKind> kinds;
};

VkDescriptorType descriptor_type(BindingKind kind);
// `values`: the values of the kernel's constants, in their order. `drop_clamping`: the kernel does
// not clamp indices that the CPU has checked; for devices with VK_EXT_pipeline_robustness.
Result<VulkanPipeline> compile_pipeline(VkDevice device, const KernelSource& source,
                                        const std::vector<std::uint32_t>& values,
                                        bool drop_clamping);
void free_pipeline(VkDevice device, VulkanPipeline& pipeline);

}  // namespace moex::gpu
