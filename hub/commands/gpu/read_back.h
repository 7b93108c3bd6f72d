// Reads results of the decoder back and waits for them: the decoder answers by a function that it
// calls later, and the engine's thread has nothing else to do meanwhile.
#pragma once

#include "protocol/result.h"
#include "web-worker/gpu/vulkan/posted_loop.h"

namespace moex {

// Calls read(done), which begins a read, and waits until `done` was called. Then `take` has got the
// value, or the error of the read is returned. What the value borrows is valid during `take` only.
//   read_back<std::span<const float>>(loop, device, [&](auto done) { decoder.read_logits(done); },
//                                     [&](std::span<const float> logits) { ... });
template <class T, class Read, class Take>
Status read_back(gpu::PostedLoop& loop, gpu::Device* device, Read read, Take take) {
    bool finished = false;
    Status was_read;
    read([&](Result<T> value) {
        finished = true;
        if (value.ok())
            take(*value);
        else
            was_read = value.error();
    });
    loop.run_until(finished, device);
    return was_read;
}

}  // namespace moex
