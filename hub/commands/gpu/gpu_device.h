// Which device `--gpu` means.
#pragma once

#include <memory>
#include <string>

#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex {

// `name`: "auto" for a real GPU; or a device's index, or part of its name, software ones included.
// unavailable: "auto", and there is no real one here.
Result<std::unique_ptr<gpu::Device>> open_gpu_device(const std::string& name,
                                                     gpu::PostFunction post);

}  // namespace moex
