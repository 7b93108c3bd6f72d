// What a simulated swarm is made of and asked for: faults, workers, rounds and what came of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "hub/dispatch/swarm_types.h"
#include "tests/support/lies.h"

namespace moex::sim {

// Shares of messages (or rounds, or workers) that a fault strikes.
struct Faults {
    double loss = 0, duplication = 0, reorder = 0, truncation = 0, bit_flips = 0;  // per message
    double delay = 0;  // per message: held up to `delay_max`
    Duration delay_max = 200ms;
    double stall = 0;  // per group: the worker says nothing for up to `stall_max`
    Duration stall_max = 3s;
    double busy = 0, error = 0;   // per group: BUSY, or a non-fatal ERROR
    double churn_per_minute = 0;  // joins and leaves of the whole swarm
    double liars =
        0;  // share of workers that answer with a wrong shape, NaN, or far beyond the norm bound
};
// "none", "all", or names joined by commas: loss delay duplication
// reorder truncation flips stalls busy errors churn liars.
Result<Faults> parse_faults(std::string_view list);

enum class Peer { ours, published };  // published: speaks the five messages only

// What a worker is like. A simulated tab's line carries calls, answers and weights.
struct WorkerProfile {
    Duration compute = 3ms;  // of a group: the median
    Duration per_pair{};     // and for each pair of it
    double spread = 0;       // of the logarithm of its time; 0: evenly up to twice `compute`
    double stall = 0;        // share of groups that take `stall_min` to `stall_max` longer
    Duration stall_min{}, stall_max{};
    double never = 0;  // share of groups that are never answered
    std::uint64_t up_bytes_per_s = 0, down_bytes_per_s = 0;  // 0: no bound
    std::uint32_t budget_experts = 0;                        // 0: the swarm's
    // Experts that lie in its memory, 0: all; any other is brought there in `load`, one after the
    // other, when it is asked for or hinted.
    std::uint32_t slots = 0;
    Duration load = 5ms;
    Lie lie = Lie::none;
    double lie_share = 1;            // of its answers
    std::uint64_t honest_first = 0;  // a sleeper: so many right answers before the first lie
};

struct SimOptions {
    std::uint32_t num_workers = 2;
    std::uint64_t seed = 1;
    std::uint32_t num_layers = 3, num_experts = 16, top_k = 4, hidden_size = 32;
    std::uint32_t budget_experts = 1000;  // per worker
    double published_share = 0;
    Duration latency = 2ms;           // of the network one way; jitter is as large again
    Duration compute = 3ms;           // of a group
    Duration local_compute = 5ms;     // of whatever the local backend is given
    std::uint64_t blob_bytes = 1000;  // of one expert's weights
    // Rows are small here: from two of them on a frame shares its round's.
    std::uint64_t gathered_bytes_min = 128;
    bool reports_held = true;  // workers say after WELCOME what they have cached
    // An oracle that no policy reaches: what would meet a stall is computed at once by others who
    // hold it, as soon as they are free, and the hub never knows.
    bool foresees_stalls = false;
    Faults faults;
    // Holds what goes on against what must: units find holders, rounds with an honest holder end
    // well, ejected workers are left alone, second attempts stay within their budget.
    bool watches_liveness = false;
    // Events between two checks of everything; after each event what it may have touched is
    // checked.
    std::uint32_t check_whole_every = 1000;
    SwarmOptions swarm;  // shape, limits and hashes are filled in
    bool log = false;    // keep the event log as text
};

struct RoundSpec {
    std::uint32_t layer = 0, num_tokens = 1;
    std::vector<std::uint16_t> expert_ids;  // empty: drawn; else [num_tokens, top_k]
    std::vector<RowPatience> patience = {};
};
// What one pair of a round adds to its row.
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
    // of rounds with a patience: what may be left out, and what `want` is made of
    std::vector<RowPatience> patience;
    std::vector<PairValue> parts;
    double error_max = 0;  // |y - want| over the largest |want|
    bool wrong = false;    // by more than rounding: somebody lied, or the core mixed things up
    std::vector<std::uint32_t> rows_wrong;  // the same of a row by itself, ascending
    TimePoint asked_at{}, done_at{};
};

// The sim's expert: gate * f(layer, expert, x), rounded to f16 as a worker's answer is.
void sim_expert(std::uint32_t layer, std::uint32_t expert, const float* x, float gate,
                std::uint32_t hidden_size, bool round_f16, float* y);

}  // namespace moex::sim
