#include "web-worker/gpu/vulkan/vulkan_api.h"

#include <algorithm>
#include <span>
#include <string_view>

namespace moex::gpu {
namespace {

// A device is chosen by an index of at most two digits. A longer number is part of a device's name,
// as in "4090".
constexpr std::size_t index_digits_max = 2;

}  // namespace

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

bool has_extension(VkPhysicalDevice device, std::string_view name) {
    std::uint32_t count = 0;
    vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr);
    std::vector<VkExtensionProperties> extensions(count);
    vkEnumerateDeviceExtensionProperties(device, nullptr, &count, extensions.data());
    return std::any_of(extensions.begin(), extensions.end(),
                       [&](const auto& one) { return one.extensionName == name; });
}

struct HeapsInUse {
    VkPhysicalDeviceMemoryProperties heaps;
    // The values stay zero if the driver does not report them.
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget;
};
HeapsInUse heaps_in_use(VkPhysicalDevice device, bool has_budget) {
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 memory{
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    if (has_budget) memory.pNext = &budget;
    vkGetPhysicalDeviceMemoryProperties2(device, &memory);
    return {memory.memoryProperties, budget};
}

// The free bytes of the largest device-local heap: its size, less the memory that other processes
// hold, where the driver reports it.
std::uint64_t memory_bytes(VkPhysicalDevice device) {
    const bool has_budget = has_extension(device, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    const auto [heaps, budget] = heaps_in_use(device, has_budget);

    std::uint64_t most = 0;
    for (std::uint32_t i = 0; i < heaps.memoryHeapCount; ++i) {
        const VkMemoryHeap& heap = heaps.memoryHeaps[i];
        if ((heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) == 0) continue;
        const std::uint64_t held = has_budget ? budget.heapUsage[i] : 0;
        std::uint64_t free = heap.size;
        if (has_budget && budget.heapBudget[i] > held)
            free = std::min<std::uint64_t>(free, budget.heapBudget[i] - held);
        most = std::max(most, free);
    }
    return most;
}

bool has_pipeline_robustness(VkPhysicalDevice device) {
    if (!has_extension(device, VK_EXT_PIPELINE_ROBUSTNESS_EXTENSION_NAME)) return false;

    VkPhysicalDevicePipelineRobustnessFeaturesEXT robustness{
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_ROBUSTNESS_FEATURES_EXT};
    VkPhysicalDeviceFeatures2 features{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    features.pNext = &robustness;
    vkGetPhysicalDeviceFeatures2(device, &features);
    return robustness.pipelineRobustness == VK_TRUE;
}

// The page size of process memory that the device can read (for
// web-worker/gpu/vulkan/vulkan_transfers.h); 0 if the device lacks an extension.
std::uint64_t shared_page_bytes(VkPhysicalDevice device) {
    if (!has_extension(device, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME) ||
        !has_extension(device, VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME))
        return 0;

    VkPhysicalDeviceTimelineSemaphoreFeatures timeline{
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES};
    VkPhysicalDeviceFeatures2 features{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    features.pNext = &timeline;
    vkGetPhysicalDeviceFeatures2(device, &features);
    if (timeline.timelineSemaphore == VK_FALSE) return 0;

    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host{
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
    VkPhysicalDeviceProperties2 properties{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    properties.pNext = &host;
    vkGetPhysicalDeviceProperties2(device, &properties);
    return host.minImportedHostPointerAlignment;
}

// Chooses the queue family for copies. Prefers a family that only copies: the GPU's copy engine,
// which no kernel keeps busy.
std::uint32_t transfer_family(std::span<const VkQueueFamilyProperties> families,
                              std::uint32_t compute_family) {
    constexpr VkQueueFlags computes = VK_QUEUE_GRAPHICS_BIT | VK_QUEUE_COMPUTE_BIT;
    for (std::uint32_t i = 0; i < families.size(); ++i)
        if ((families[i].queueFlags & VK_QUEUE_TRANSFER_BIT) != 0 &&
            (families[i].queueFlags & computes) == 0)
            return i;
    return compute_family;
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
            adapter.transfer_family = transfer_family(family, i);
            adapter.shared_page_bytes = shared_page_bytes(device);
            adapter.has_timestamps = family[i].timestampValidBits > 0;
            adapter.has_memory_budget = has_extension(device, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
            adapter.has_pipeline_robustness = has_pipeline_robustness(device);
            adapter.memory_bytes = memory_bytes(device);
            adapters.push_back(adapter);
            break;
        }
    }
    return adapters;
}

bool is_alone(VkPhysicalDevice device, double share, std::uint64_t bytes) {
    const auto [heaps, budget] = heaps_in_use(device, true);

    for (std::uint32_t i = 0; i < heaps.memoryHeapCount; ++i) {
        const VkMemoryHeap& heap = heaps.memoryHeaps[i];
        if ((heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) == 0) continue;
        const VkDeviceSize held = heap.size - std::min(heap.size, budget.heapBudget[i]);
        if (held > bytes && static_cast<double>(held) > share * static_cast<double>(heap.size))
            return false;
    }
    return true;
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

    std::vector<std::string> names;
    for (const VulkanAdapter& adapter : adapters) names.push_back(adapter.properties.deviceName);
    MOEX_ASSIGN(index, find_device(names, wanted));
    return adapters[index];
}

Result<std::size_t> find_device(std::span<const std::string> names, const std::string& wanted) {
    const bool is_index = wanted.size() <= index_digits_max &&
                          wanted.find_first_not_of("0123456789") == std::string::npos;
    for (std::size_t i = 0; i < names.size(); ++i)
        if (is_index ? wanted == std::to_string(i) : names[i].find(wanted) != std::string::npos)
            return i;

    std::string known;
    for (std::size_t i = 0; i < names.size(); ++i)
        known += text(i == 0 ? "" : ", ", i, " ", names[i]);
    return Error{ErrorCode::not_found,
                 text("no Vulkan device is ", is_index ? "number " : "called ", wanted,
                      "; there are: ", known)};
}

}  // namespace moex::gpu
