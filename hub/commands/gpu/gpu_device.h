// Opens the device that `--gpu` names.
#pragma once

#include <memory>
#include <string>

#include "hub/engine/kv_dtype.h"
#include "web-worker/decoder/decoder_memory.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex {

// `name`: "auto" for a real GPU, or a device's index, or part of a device's name, where software
// devices count too. The caller polls the device for its reads (gpu::Device::answer_read()).
// unavailable: "auto", and this machine has no real GPU.
Result<std::unique_ptr<gpu::Device>> open_gpu_device(const std::string& name,
                                                     gpu::PostFunction post,
                                                     bool stay_awake = false);

// Returns no_space if a model needs more than `there_bytes` of the device's memory (0: unknown).
// The message names both sizes.
Status check_memory(const gpu::AdapterInfo& adapter, const DecoderMemory::Needs& needs,
                    std::uint64_t there_bytes);
KvKind kv_kind_of(KvDtype dtype);
std::uint64_t megabytes(std::uint64_t bytes);  // rounded up

}  // namespace moex
