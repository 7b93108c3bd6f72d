// Opens the GPU that the setting `--gpu` names.
#pragma once

#include <memory>
#include <string>

#include "hub/engine/kv_dtype.h"
#include "web-worker/decoder/decoder_memory.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex {

// Opens the GPU that `name` selects: "auto" for a real GPU, a device's index, or part of a device's
// name. An index or a name may also select a software device. The caller polls the device for its
// reads (gpu::Device::answer_read()). Returns the error unavailable for "auto" if this machine has
// no real GPU.
Result<std::unique_ptr<gpu::Device>> open_gpu_device(const std::string& name,
                                                     gpu::PostFunction post,
                                                     bool stay_awake = false);

// Returns no_space if a model needs more than `there_bytes`, the size of the device's memory (0:
// unknown). The message names the needed and the existing size.
Status check_memory(const gpu::AdapterInfo& adapter, const DecoderMemory::Needs& needs,
                    std::uint64_t there_bytes);
KvKind kv_kind_of(KvDtype dtype);
std::uint64_t megabytes(std::uint64_t bytes);  // rounded up

}  // namespace moex
