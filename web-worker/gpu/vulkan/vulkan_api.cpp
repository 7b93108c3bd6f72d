#include "web-worker/gpu/vulkan/vulkan_api.h"

#include <algorithm>
#include <string_view>

namespace moex::gpu {

std::string vulkan_result_text(VkResult result) {
    switch (result) {
        case VK_ERROR_OUT_OF_HOST_MEMORY: return "out of host memory";
        case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "out of device memory";
        case VK_ERROR_INITIALIZATION_FAILED: return "initialization failed";
        case VK_ERROR_DEVICE_LOST: return "device lost";
        case VK_ERROR_INCOMPATIBLE_DRIVER:
            return "no compatible driver; install a Vulkan driver (mesa-vulkan-drivers has a "
                   "software one)";
        default: return text("VkResult ", static_cast<int>(result));
    }
}

Result<VkInstance> vulkan_instance() {
    static VkInstance instance = VK_NULL_HANDLE;
    if (instance != VK_NULL_HANDLE) return instance;
    VkApplicationInfo application{.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO};
    application.pApplicationName = "moex-worker";
    application.apiVersion = VK_API_VERSION_1_1;

    VkInstanceCreateInfo info{.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
    info.pApplicationInfo = &application;
    MOEX_VULKAN(vkCreateInstance(&info, nullptr, &instance), "vkCreateInstance");
    return instance;
}

namespace {

bool has_pipeline_robustness(VkPhysicalDevice device) {
    std::uint32_t count = 0;
    vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr);
    std::vector<VkExtensionProperties> extensions(count);
    vkEnumerateDeviceExtensionProperties(device, nullptr, &count, extensions.data());
    const bool named = std::any_of(extensions.begin(), extensions.end(), [](const auto& one) {
        return std::string_view(one.extensionName) == VK_EXT_PIPELINE_ROBUSTNESS_EXTENSION_NAME;
    });
    if (!named) return false;

    VkPhysicalDevicePipelineRobustnessFeaturesEXT robustness{
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_ROBUSTNESS_FEATURES_EXT};
    VkPhysicalDeviceFeatures2 features{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    features.pNext = &robustness;
    vkGetPhysicalDeviceFeatures2(device, &features);
    return robustness.pipelineRobustness == VK_TRUE;
}

}  // namespace

Result<std::vector<VulkanAdapter>> vulkan_adapters() {
    MOEX_ASSIGN(instance, vulkan_instance());
    std::uint32_t count = 0;
    MOEX_VULKAN(vkEnumeratePhysicalDevices(instance, &count, nullptr),
                "vkEnumeratePhysicalDevices");
    std::vector<VkPhysicalDevice> devices(count);
    MOEX_VULKAN(vkEnumeratePhysicalDevices(instance, &count, devices.data()),
                "vkEnumeratePhysicalDevices");

    std::vector<VulkanAdapter> adapters;
    for (const VkPhysicalDevice device : devices) {
        VulkanAdapter adapter;
        adapter.device = device;

        VkPhysicalDeviceDriverProperties driver{
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
        VkPhysicalDeviceProperties2 properties{
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
        properties.pNext = &driver;
        vkGetPhysicalDeviceProperties2(device, &properties);

        adapter.properties = properties.properties;
        adapter.driver = driver.driverInfo;
        adapter.software = adapter.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;

        std::uint32_t families = 0;
        vkGetPhysicalDeviceQueueFamilyProperties(device, &families, nullptr);
        std::vector<VkQueueFamilyProperties> family(families);
        vkGetPhysicalDeviceQueueFamilyProperties(device, &families, family.data());

        for (std::uint32_t i = 0; i < families; ++i) {
            if ((family[i].queueFlags & VK_QUEUE_COMPUTE_BIT) == 0) continue;
            adapter.queue_family = i;
            adapter.has_timestamps = family[i].timestampValidBits > 0;
            adapter.has_pipeline_robustness = has_pipeline_robustness(device);
            adapters.push_back(adapter);
            break;
        }
    }
    return adapters;
}

Result<VulkanAdapter> choose_vulkan_adapter(const std::string& wanted) {
    MOEX_ASSIGN(adapters, vulkan_adapters());
    if (adapters.empty())
        return Error{ErrorCode::unavailable, "no Vulkan device with a compute queue"};

    if (wanted.empty()) {
        for (const VulkanAdapter& adapter : adapters)
            if (!adapter.software) return adapter;
        return adapters.front();
    }

    for (std::size_t i = 0; i < adapters.size(); ++i)
        if (wanted == std::to_string(i) ||
            std::string(adapters[i].properties.deviceName).find(wanted) != std::string::npos)
            return adapters[i];

    std::string names;
    for (const VulkanAdapter& adapter : adapters)
        names += text(names.empty() ? "" : ", ", adapter.properties.deviceName);
    return Error{ErrorCode::not_found,
                 text("no Vulkan device is called ", wanted, "; there are: ", names)};
}

Result<std::vector<std::string>> list_vulkan_devices() {
    MOEX_ASSIGN(adapters, vulkan_adapters());
    std::vector<std::string> names;
    for (const VulkanAdapter& adapter : adapters)
        names.push_back(text(adapter.properties.deviceName, adapter.software ? " (software)" : ""));
    return names;
}

}  // namespace moex::gpu
