#include "hub/commands/gpu/gpu_device.h"

namespace moex {

Result<std::unique_ptr<gpu::Device>> open_gpu_device(const std::string& name,
                                                     gpu::PostFunction post) {
    const bool any = name == "auto";
    auto opened = gpu::open_vulkan_device({.device = any ? "" : name}, std::move(post));
    if (!opened.ok())
        return any ? Error{ErrorCode::unavailable, opened.error().message} : opened.error();
    if (any && (*opened)->adapter().software)
        return Error{ErrorCode::unavailable,
                     text("no GPU here but ", (*opened)->adapter().description,
                          ", which is software; name it to use it")};
    return opened;
}

}  // namespace moex
