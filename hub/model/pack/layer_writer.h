// Writes the expert blobs of a layer on the compute threads, with a bound on the memory of the
// blobs. Packer and synth share this function.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/model/pack/package_writer.h"

namespace moex {

// Limit for the bytes of all threads' blob buffers together. One buffer is allowed even if it is
// larger than the limit.
inline constexpr std::uint64_t blob_buffers_bytes_max = 128u << 20;

// Calls fill(expert, blob) for each expert of a layer. `blob` has the size of the layout, and its
// padding is zero. Writes the blobs and returns their hashes in the order of experts. Calls
// `done(expert)` after each expert, one call at a time. If several experts fail, returns the error
// of the expert with the lowest number.
Result<std::vector<Sha256>> write_layer_blobs(
    PackageOutput& output, std::uint32_t num_experts, std::uint64_t blob_bytes, ThreadPool& threads,
    const std::function<Status(std::uint32_t expert, std::span<std::byte> blob)>& fill,
    const std::function<void(std::uint32_t expert)>& done);

}  // namespace moex
