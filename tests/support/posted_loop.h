// An event loop for tests and benches that use a native GPU device.
#pragma once

#include "web-worker/gpu/vulkan/posted_loop.h"

namespace moex::test {
using gpu::PostedLoop;
}  // namespace moex::test
