// What `fixed h` must give where everything is independent: a round of k calls, each asked of h
// workers at once, ends after the largest of k smallest of h. Simulated, beside the integral.
#pragma once

#include <cstdint>

namespace moex::sim {

struct TheoryCell {
    std::uint32_t num_copies = 1, num_calls = 1;  // h, k
    double wanted_ms = 0, measured_ms = 0;        // the mean of a round
    double deviation() const { return measured_ms / wanted_ms - 1; }
};
// Times are log-normal, 20 ms at the median. The mean of that many rounds is off by 0.8 / sqrt of
// them at the most, one standard deviation.
TheoryCell measure_fixed(std::uint32_t num_copies, std::uint32_t num_calls,
                         std::uint32_t num_rounds, std::uint64_t seed);

}  // namespace moex::sim
