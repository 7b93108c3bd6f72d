// Compares the simulated time of a round under `fixed h` with the expected value from theory.
// All latencies are independent. A round has k calls, and each call is sent to h workers at once.
// The round then takes the maximum over k calls of the minimum over h latencies; the expected value
// is an integral (hub/foresight/cost/round_time.h).
#pragma once

#include <cstdint>

namespace moex::sim {

struct TheoryCell {
    std::uint32_t num_copies = 1, num_calls = 1;  // h and k in the comment at the head of this file
    double wanted_ms = 0, measured_ms = 0;  // mean time of a round, by theory and as simulated
    double deviation() const { return measured_ms / wanted_ms - 1; }
};
// Simulates `num_rounds` rounds with log-normal latencies and a median of 20 ms. The standard
// deviation of the simulated mean is at most 0.8 / sqrt(num_rounds) of the expected value.
TheoryCell measure_fixed(std::uint32_t num_copies, std::uint32_t num_calls,
                         std::uint32_t num_rounds, std::uint64_t seed);

}  // namespace moex::sim
