#include "hub/dispatch/round/row_math.h"

#include <numeric>

#include "protocol/wide_loops.h"

namespace moex {

// Sixteen independent sums (lanes): the compiler can vectorise them without reassociation, and an
// addition does not wait for the previous one.
MOEX_WIDE_LOOPS double square_sum(const float* values, std::size_t count) {
    constexpr std::size_t num_lanes = 16;
    double lanes[num_lanes] = {};
    std::size_t i = 0;
    for (; i + num_lanes <= count; i += num_lanes)
        for (std::size_t lane = 0; lane < num_lanes; ++lane)
            lanes[lane] += static_cast<double>(values[i + lane]) * values[i + lane];
    for (; i < count; ++i) lanes[0] += static_cast<double>(values[i]) * values[i];
    return std::accumulate(lanes, lanes + num_lanes, 0.0);
}

MOEX_WIDE_LOOPS void add_row(float* __restrict sum, const float* __restrict row,
                             std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += row[i];
}

MOEX_WIDE_LOOPS void add_scaled_row(float* __restrict sum, const float* __restrict row,
                                    float factor, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += row[i] * factor;
}

}  // namespace moex
