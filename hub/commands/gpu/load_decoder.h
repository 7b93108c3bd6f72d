// Makes the decoder of a package on a GPU, with its weights.
#pragma once

#include <memory>

#include "hub/commands/gpu/package_weights.h"
#include "web-worker/decoder/gpu_decoder.h"
#include "web-worker/gpu/vulkan/posted_loop.h"

namespace moex {

// Returns when all weights are stored on `device`. Until then it runs the functions that the device
// posts to `loop`. `progress` may be empty.
Result<std::unique_ptr<GpuDecoder>> load_decoder(gpu::Device& device, gpu::PostedLoop& loop,
                                                 std::shared_ptr<const ModelPackage> package,
                                                 const DecoderModel& model,
                                                 const GpuDecoderOptions& options,
                                                 WeightProgress progress);

}  // namespace moex
