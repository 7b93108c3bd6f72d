#include "hub/model/pack/layer_writer.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

namespace moex {

Result<std::vector<Sha256>> write_layer_blobs(
    PackageOutput& output, std::uint32_t num_experts, std::uint64_t blob_bytes, ThreadPool& threads,
    const std::function<Status(std::uint32_t, std::span<std::byte>)>& fill,
    const std::function<void(std::uint32_t)>& done) {
    const std::size_t buffers_max = std::max<std::uint64_t>(1, blob_buffers_bytes_max / blob_bytes);
    const std::size_t num_lanes = std::min(
        {threads.num_threads(), buffers_max, std::size_t{num_experts}});
    std::vector<Sha256> hashes(num_experts);
    std::atomic<std::uint32_t> next{0};
    std::mutex mutex;  // guards `errors` and calls of `done`
    std::map<std::uint32_t, Error> errors;

    threads.parallel_for(num_lanes, 1, [&](std::size_t begin, std::size_t) {
        if (begin >= num_lanes) return;
        Bytes blob(blob_bytes);
        for (std::uint32_t expert; (expert = next.fetch_add(1)) < num_experts;) {
            Status status = fill(expert, blob);
            if (status.ok()) {
                auto hash = output.write_blob(blob);
                if (hash.ok())
                    hashes[expert] = *hash;
                else
                    status = hash.error();
            }

            const std::lock_guard lock(mutex);
            if (status.ok()) {
                done(expert);
                continue;
            }

            errors.emplace(expert, status.error());
            next.store(num_experts);
        }
    });

    if (!errors.empty()) return errors.begin()->second;
    return hashes;
}

}  // namespace moex
