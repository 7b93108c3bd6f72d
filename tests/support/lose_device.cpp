// A library that a test loads into a native worker with LD_PRELOAD. After SIGUSR2 the next
// submission to a Vulkan queue of this process fails as after a reset of the driver. The device
// that the worker opens next works.
#include <dlfcn.h>
#include <vulkan/vulkan.h>

#include <atomic>
#include <csignal>

namespace {

std::atomic<bool> breaks_next = false;

[[gnu::constructor]] void listen() {
    std::signal(SIGUSR2, [](int) { breaks_next = true; });
}

}  // namespace

extern "C" [[gnu::visibility("default")]] VkResult vkQueueSubmit(VkQueue queue, uint32_t count,
                                                                 const VkSubmitInfo* submissions,
                                                                 VkFence fence) {
    static const auto real = reinterpret_cast<PFN_vkQueueSubmit>(dlsym(RTLD_NEXT, "vkQueueSubmit"));
    if (breaks_next.exchange(false)) return VK_ERROR_DEVICE_LOST;
    return real(queue, count, submissions, fence);
}
