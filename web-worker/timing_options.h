// What is measured of a GPU: by a worker before it serves, by /bench.html, by kernel_bench.
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
    std::uint32_t experts = 8;  // of a round, each with all its rows
    std::uint32_t layers = 4;   // whose rounds take turns, so that no cache holds their weights
    std::uint64_t read_bytes = 256ull << 20;  // 0: the bound is not measured
    std::uint32_t rounds = 100;               // frame to frame; 0: GPU time alone
    double submission_us = 3e4;               // about what the longest submission takes
    std::uint32_t turns = 4;                  // of which the best counts
    bool published = true;                    // the three published kernels as well
    // After this no further number of rows is begun; 0: all are.
    double last_rows_us = 0;

    // What a worker asks of its GPU before it serves: within half of `budget_bytes`, in a moment.
    // Of a software adapter nothing: it is slow, and what it says is of no use to a hub.
    static std::optional<TimingOptions> at_start(const gpu::AdapterInfo& adapter,
                                                 std::uint64_t budget_bytes);
    // Within what a tab may take, for a person who waits.
    static TimingOptions bench(const std::string& shape_name, const gpu::AdapterInfo& adapter);
};
// unsupported for a name that is not "qwen3-30b-a3b", "paper" or "demo".
Result<ExpertShape> timing_shape(std::string_view name);

}  // namespace moex
