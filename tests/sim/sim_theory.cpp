#include "tests/sim/sim_theory.h"

#include <cmath>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

constexpr double median_ms = 20, spread = 0.5;

// E[max of k of min of h] = the integral over t of 1 - (1 - (1 - F(t))^h)^k, by the trapezoid rule
// over the logarithm of t.
double expected_ms(std::uint32_t num_copies, std::uint32_t num_calls) {
    constexpr double step = 1e-4, from = -8, to = 8;  // in units of `spread`
    const auto time_at = [](double z) { return median_ms * std::exp(spread * z); };
    const auto still_open = [&](double z) {
        const double later = 0.5 * std::erfc(z / std::sqrt(2.0));
        return 1 - std::pow(1 - std::pow(later, num_copies), num_calls);
    };
    double sum = time_at(from);
    for (double z = from; z < to; z += step)
        sum += (time_at(z + step) - time_at(z)) * 0.5 * (still_open(z) + still_open(z + step));
    return sum;
}

}  // namespace

TheoryCell measure_fixed(std::uint32_t num_copies, std::uint32_t num_calls,
                         std::uint32_t num_rounds, std::uint64_t seed) {
    // A worker for each copy of each expert, so that none waits for another, and a line without
    // length.
    SimOptions options{.num_workers = 0,
                       .seed = seed,
                       .num_layers = 1,
                       .num_experts = num_calls,
                       .top_k = num_calls,
                       .budget_experts = 1,
                       .latency = {}};
    options.swarm.local_fallback = false;
    options.swarm.replicas = num_copies;
    options.swarm.hedge = {.mode = HedgeMode::fixed, .copies = num_copies};
    options.swarm.timeout_min = options.swarm.timeout_max = 5s;  // nobody is asked once more
    SimSwarm swarm(options);
    for (std::uint32_t i = 0; i < num_copies * num_calls; ++i)
        swarm.join_as(
            {.compute = Duration(static_cast<std::int64_t>(1e6 * median_ms)), .spread = spread},
            text("10.", i / num_calls, ".", i % num_calls, ".1"));
    swarm.run_until_ready();

    double sum_ms = 0;
    for (std::uint32_t i = 0; i < num_rounds; ++i) {
        const TimePoint start = swarm.now();
        const RoundId round = swarm.submit();
        swarm.run_until_answered(round);
        sum_ms += to_ms(swarm.now() - start);
        swarm.forget(round);
        swarm.run_for(500ms);  // the losers have ended, too
    }
    return {.num_copies = num_copies,
            .num_calls = num_calls,
            .wanted_ms = expected_ms(num_copies, num_calls),
            .measured_ms = sum_ms / num_rounds};
}

}  // namespace moex::sim
