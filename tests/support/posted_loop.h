// The event loop of tests and benches that drive a native device.
#pragma once

#include "web-worker/gpu/vulkan/posted_loop.h"

namespace moex::test {
using gpu::PostedLoop;
}  // namespace moex::test
