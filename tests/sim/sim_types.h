// The data types of the simulated swarm: its options, its faults and workers, its rounds, and the
// outcome of each round.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "hub/dispatch/swarm_types.h"
#include "tests/support/lies.h"

namespace moex::sim {

// For each fault, the share of messages, groups or workers that it affects, from 0 to 1.
struct Faults {
    // shares of messages
    double loss = 0, duplication = 0, reorder = 0, truncation = 0, bit_flips = 0;
    double delay = 0;  // share of messages that are delayed, each by up to `delay_max`
    Duration delay_max = 200ms;
    double stall = 0;  // share of groups for which the worker sends nothing for up to `stall_max`
    Duration stall_max = 3s;
    // share of groups that are answered with BUSY, or with a non-fatal ERROR
    double busy = 0, error = 0;
    // departures per minute as a share of the swarm; as many workers join
    double churn_per_minute = 0;
    double liars =
        0;  // share of workers that answer with a wrong shape, NaN, or a norm beyond the bound
};
// Parses "none", "all", or names joined by commas: loss, delay, duplication, reorder, truncation,
// flips, stalls, busy, errors, churn, liars.
Result<Faults> parse_faults(std::string_view list);

// ours: a worker of this project; published: knows only the five published messages
enum class Peer { ours, published };

// The properties of one simulated worker. A tab's connection carries calls, answers and weights.
struct WorkerProfile {
    Duration compute = 3ms;  // median time of a group
    Duration per_pair{};     // additional time for each pair of the group
    // Standard deviation of the logarithm of a group's time. 0: the time is uniform, from `compute`
    // to twice `compute`.
    double spread = 0;
    double stall = 0;  // share of groups that take `stall_min` to `stall_max` longer
    Duration stall_min{}, stall_max{};
    double never = 0;  // share of groups that are never answered
    std::uint64_t up_bytes_per_s = 0, down_bytes_per_s = 0;  // bytes per second; 0: unlimited
    std::uint32_t budget_experts = 0;  // memory in experts; 0: that of SimOptions
    // Number of experts that fit into the worker's fast memory; 0: all. Any other expert is loaded
    // into it when a call or a hint names the expert. Experts are loaded one after the other, and
    // each takes the time `load`.
    std::uint32_t slots = 0;
    Duration load = 5ms;
    // Layers that fit into its memory whole; 0: the worker cannot compute layers whole.
    std::uint32_t span_layers = 0;
    Duration layer_compute = 1ms;  // time of a whole layer
    Lie lie = Lie::none;
    double lie_share = 1;            // share of the worker's answers that are false
    std::uint64_t honest_first = 0;  // number of right answers before the first lie (a sleeper)
};

struct SimOptions {
    std::uint32_t num_workers = 2;
    std::uint64_t seed = 1;
    std::uint32_t num_layers = 3, num_experts = 16, top_k = 4, hidden_size = 32;
    std::uint32_t budget_experts = 1000;  // memory of each worker, in experts
    double published_share = 0;
    // one-way latency of the network; jitter adds up to the same time again
    Duration latency = 2ms;
    Duration compute = 3ms;  // least time of a group; the time is up to twice this value
    // Time of a call to the local backend, which computes one call after the other, and additional
    // time for each pair.
    Duration local_compute = 5ms, local_per_pair{};
    std::uint64_t blob_bytes = 1000;  // size of one expert's weights
    // Least bytes of rows for which a frame shares the round's rows without a copy. Rows are small
    // in the simulation, so the limit is low: a frame of two rows or more shares them.
    std::uint64_t gathered_bytes_min = 128;
    bool reports_held = true;  // workers report their cached units after WELCOME
    // If true, an oracle avoids stalls, as a bound for every policy: a call that a stall would
    // delay is computed by other holders of its units as soon as these holders are free. The hub
    // does not know of the oracle.
    bool foresees_stalls = false;
    Faults faults;
    // If true, liveness is checked: every unit gets a holder, a round with an honest holder for
    // each unit succeeds, ejected workers are sent no calls, and second attempts stay within their
    // budget.
    bool watches_liveness = false;
    // Number of events between two complete checks of the invariants. After every event only the
    // state that the event may have changed is checked.
    std::uint32_t check_whole_every = 1000;
    SwarmOptions swarm;  // options of the core; SimSwarm sets shape, limits and hashes
    bool log = false;    // keep the event log as text
};

struct RoundSpec {
    std::uint32_t layer = 0, num_tokens = 1;
    std::vector<std::uint16_t> expert_ids;  // [num_tokens, top_k]; empty: drawn at random
    std::vector<RowPatience> patience = {};
};
// The product of one (row, expert) pair of a round: the summand that it adds to its row.
struct PairValue {
    std::uint32_t row = 0;
    std::uint16_t expert = 0;
    std::vector<float> y;
};
struct RoundOutcome {
    std::uint32_t times_done = 0;
    bool cancelled = false;
    std::optional<Result<ExpertAnswer>> answer;
    std::vector<float> y, want;
    // For rounds with a latency budget. `patience`: the budget of each row and how many of its
    // pairs may be missing. `parts`: the summands of `want`.
    std::vector<RowPatience> patience;
    std::vector<PairValue> parts;
    double error_max = 0;  // largest |y - want|, divided by the largest |want|
    bool wrong = false;    // the error exceeds rounding: a worker lied, or the core is wrong
    std::vector<std::uint32_t> rows_wrong;  // numbers of the rows that are wrong, ascending
    TimePoint asked_at{}, done_at{};
};

// Computes the simulated expert y = gate * f(layer, expert, x) for one row of `hidden_size` values.
// With `round_f16`, y is rounded to f16 as a worker's answer is.
void sim_expert(std::uint32_t layer, std::uint32_t expert, const float* x, float gate,
                std::uint32_t hidden_size, bool round_f16, float* y);

}  // namespace moex::sim
