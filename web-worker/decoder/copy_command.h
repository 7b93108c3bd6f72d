// A copy between two buffers, as a command of a submission.
#pragma once

#include "web-worker/gpu/device.h"

namespace moex {

inline gpu::Command copy_command(gpu::BufferId source, std::uint64_t source_at,
                                 gpu::BufferId target, std::uint64_t target_at,
                                 std::uint64_t size_bytes) {
    gpu::Command copy;
    copy.kind = gpu::Command::Kind::copy;
    copy.source = source;
    copy.source_offset_bytes = source_at;
    copy.target = target;
    copy.target_offset_bytes = target_at;
    copy.size_bytes = size_bytes;
    return copy;
}

}  // namespace moex
