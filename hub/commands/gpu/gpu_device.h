// Which device `--gpu` means.
#pragma once

#include <memory>
#include <string>

#include "hub/engine/kv_dtype.h"
#include "web-worker/decoder/decoder_memory.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex {

// `name`: "auto" for a real GPU; or a device's index, or part of its name, software ones included.
// It is asked for what it read (gpu::Device::answer_read()). unavailable: "auto", and there is no
// real one here.
Result<std::unique_ptr<gpu::Device>> open_gpu_device(const std::string& name,
                                                     gpu::PostFunction post,
                                                     bool stay_awake = false);

// no_space where a model needs more than `there_bytes` of the device's memory (0: nobody knows);
// both are named.
Status check_memory(const gpu::AdapterInfo& adapter, const DecoderMemory::Needs& needs,
                    std::uint64_t there_bytes);
KvKind kv_kind_of(KvDtype dtype);
std::uint64_t megabytes(std::uint64_t bytes);  // rounded up

}  // namespace moex
