#include "tests/sim/sim_theory.h"

#include "hub/foresight/cost/round_time.h"
#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

constexpr double median_ms = 20, spread = 0.5;

}  // namespace

TheoryCell measure_fixed(std::uint32_t num_copies, std::uint32_t num_calls,
                         std::uint32_t num_rounds, std::uint64_t seed) {
    // Give each copy of each expert its own worker, so that no call queues behind another one, and
    // give the network no latency.
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
    // with timeouts of 5 s no call is retried
    options.swarm.timeout_min = options.swarm.timeout_max = 5s;
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
        swarm.run_for(500ms);  // the slower copies of the calls end before the next round
    }
    return {.num_copies = num_copies,
            .num_calls = num_calls,
            .wanted_ms = slowest_ms({median_ms, spread}, num_calls, num_copies),
            .measured_ms = sum_ms / num_rounds};
}

}  // namespace moex::sim
