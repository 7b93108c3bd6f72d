// Options for measuring a GPU's speed: by a worker before it serves, by /bench.html, by
// kernel_bench.
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
    std::uint32_t experts = 8;  // experts of a round, each with all rows
    std::uint32_t layers = 4;   // rounds of these layers alternate, so that caches hold no weights
    std::uint64_t read_bytes = 256ull << 20;  // 0: the bound is not measured
    std::uint32_t rounds = 100;               // timed from frame to frame; 0: GPU time only
    double submission_us = 3e4;               // about the time of the longest submission
    std::uint32_t turns = 4;                  // repetitions, of which the fastest counts
    bool published = true;                    // the three published kernels as well
    // After this time no further number of rows is started; 0: no limit.
    double last_rows_us = 0;

    // The short measurement that a worker makes before it serves, within half of `budget_bytes`.
    // nullopt for a software adapter: it is slow, and its speed is of no use to a hub.
    static std::optional<TimingOptions> at_start(const gpu::AdapterInfo& adapter,
                                                 std::uint64_t budget_bytes);
    // The longer measurement of /bench.html, within the memory that a tab may take.
    static TimingOptions bench(const std::string& shape_name, const gpu::AdapterInfo& adapter);
};
// unsupported for a name that is not "qwen3-30b-a3b", "paper" or "demo".
Result<ExpertShape> timing_shape(std::string_view name);

}  // namespace moex
