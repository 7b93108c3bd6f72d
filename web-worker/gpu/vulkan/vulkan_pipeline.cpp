#include "web-worker/gpu/vulkan/vulkan_pipeline.h"

#include <span>
#include <string_view>

#include "web-worker/gpu/vulkan/vulkan_api.h"

namespace moex::gpu {
namespace {

struct KernelSpirv {
    std::string_view name;
    std::span<const std::uint32_t> words;
};
#include "kernels_spirv.inc"

Status make_layout(VkDevice device, VulkanPipeline& made) {
    std::vector<VkDescriptorSetLayoutBinding> bindings(made.kinds.size());
    for (std::size_t i = 0; i < bindings.size(); ++i)
        bindings[i] = {static_cast<std::uint32_t>(i), descriptor_type(made.kinds[i]), 1,
                       VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
    VkDescriptorSetLayoutCreateInfo set{
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
    set.bindingCount = static_cast<std::uint32_t>(bindings.size());
    set.pBindings = bindings.data();
    MOEX_VULKAN(vkCreateDescriptorSetLayout(device, &set, nullptr, &made.set_layout),
                "vkCreateDescriptorSetLayout");

    VkPipelineLayoutCreateInfo layout{.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    layout.setLayoutCount = 1;
    layout.pSetLayouts = &made.set_layout;
    MOEX_VULKAN(vkCreatePipelineLayout(device, &layout, nullptr, &made.layout),
                "vkCreatePipelineLayout");
    return {};
}

Status compile(VkDevice device, VulkanPipeline& made, const KernelSource& source,
               const std::vector<std::uint32_t>& values, bool drop_clamping) {
    for (const KernelSpirv& spirv : kernel_spirvs) {
        if (spirv.name != source.name) continue;
        VkShaderModuleCreateInfo info{.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
        info.codeSize = spirv.words.size_bytes();
        info.pCode = spirv.words.data();
        MOEX_VULKAN(vkCreateShaderModule(device, &info, nullptr, &made.module),
                    "vkCreateShaderModule");
    }

    std::vector<VkSpecializationMapEntry> entries(values.size());
    for (std::uint32_t i = 0; i < entries.size(); ++i) entries[i] = {i, 4 * i, 4};
    VkSpecializationInfo specialization{};
    specialization.mapEntryCount = static_cast<std::uint32_t>(entries.size());
    specialization.pMapEntries = entries.data();
    specialization.dataSize = 4 * values.size();
    specialization.pData = values.data();

    VkPipelineRobustnessCreateInfoEXT unclamped{
        .sType = VK_STRUCTURE_TYPE_PIPELINE_ROBUSTNESS_CREATE_INFO_EXT};
    unclamped.storageBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT;
    unclamped.uniformBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT;

    VkComputePipelineCreateInfo info{.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    if (drop_clamping && source.host_checked) info.pNext = &unclamped;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = made.module;
    info.stage.pName = "main";
    info.stage.pSpecializationInfo = &specialization;
    info.layout = made.layout;
    MOEX_VULKAN(vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, nullptr, &made.pipeline),
                "vkCreateComputePipelines");
    return {};
}

}  // namespace

VkDescriptorType descriptor_type(BindingKind kind) {
    return kind == BindingKind::uniform ? VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER
                                        : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
}

Result<VulkanPipeline> compile_pipeline(VkDevice device, const KernelSource& source,
                                        const std::vector<std::uint32_t>& values,
                                        bool drop_clamping) {
    VulkanPipeline made;
    made.kinds.assign(source.bindings.begin(), source.bindings.end());
    MOEX_TRY(make_layout(device, made));
    MOEX_TRY(compile(device, made, source, values, drop_clamping));
    return made;
}

void free_pipeline(VkDevice device, VulkanPipeline& pipeline) {
    vkDestroyPipeline(device, pipeline.pipeline, nullptr);
    vkDestroyPipelineLayout(device, pipeline.layout, nullptr);
    vkDestroyDescriptorSetLayout(device, pipeline.set_layout, nullptr);
    vkDestroyShaderModule(device, pipeline.module, nullptr);
}

}  // namespace moex::gpu
