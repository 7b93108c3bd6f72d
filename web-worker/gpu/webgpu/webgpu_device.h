// Implements gpu::Device over the browser's WebGPU, through the C bridge of
// web-worker/gpu/webgpu/webgpu_bridge.h. A worker opens one device at a time: the handles on the
// JavaScript side belong to the device that is open there.
#pragma once

#include <memory>

#include "web-worker/gpu/device.h"

namespace moex::gpu {

// Asks the browser for a GPU; `done` gets the device, or an error with a sentence for the person at
// the page.
void open_webgpu_device(std::function<void(Result<std::unique_ptr<Device>>)> done);

}  // namespace moex::gpu
