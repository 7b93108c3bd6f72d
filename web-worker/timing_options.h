// Options for measuring a GPU's speed: used by a worker before it serves, by the page /bench.html,
// and by kernel_bench.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/tensor_format.h"
#include "web-worker/gpu/device.h"

namespace moex {

struct TimingOptions {
    std::string shape_name = "qwen3-30b-a3b";
    ExpertShape shape{2048, 768, 128};
    std::vector<std::uint32_t> rows{1, 8, 64};
    std::uint32_t experts = 8;  // experts of a round, each of which gets all rows
    std::uint32_t layers = 4;   // rounds of these layers alternate, so that caches hold no weights
    // Bytes that the read kernel reads; 0: do not measure it.
    std::uint64_t read_bytes = 256ull << 20;
    // Rounds timed from frame in to frame out; 0: GPU time only.
    std::uint32_t rounds = 100;
    double submission_us = 3e4;  // approximate duration of the longest submission
    // Repetitions of a measurement, of which the fastest counts.
    std::uint32_t turns = 4;
    bool published = true;  // also measure the three published kernels
    // Time limit: after it no measurement with a further number of rows is started. 0: no limit.
    double last_rows_us = 0;

    // The short measurement that a worker makes before it serves, in at most half of
    // `budget_bytes`. Returns nullopt for a software adapter: it is slow, and its speed is of no
    // use to a hub.
    static std::optional<TimingOptions> at_start(const gpu::AdapterInfo& adapter,
                                                 std::uint64_t budget_bytes);
    // The longer measurement of /bench.html, in at most the memory that a tab may take.
    static TimingOptions bench(const std::string& shape_name, const gpu::AdapterInfo& adapter);
};
// Returns the shape of a model's experts. Returns unsupported for a name other than
// "qwen3-30b-a3b", "gpt-oss-20b" (clamped experts), "paper" or "demo".
Result<ExpertShape> timing_shape(std::string_view name);

}  // namespace moex
