// The time of a token, the bytes that a worker holds and the speed of a prompt, computed from the
// parts of a layer; and a forecast from the parts that a running hub has measured.
// Source: "MoEx", eq. 3 and 10 to 13. Three things differ from the paper: a layer has one round
// trip (there and back together), all bytes share the hub's connection, and a round ends with the
// slowest worker, not with the first.
#pragma once

#include <cstdint>
#include <vector>

#include "hub/foresight/cost/round_time.h"

namespace moex {

// The parts of a layer's time in ms: for one row, and (hub_row_ms, expert_row_ms) the time that
// each further row of a chunk adds.
struct LayerTimes {
    double hub_ms = 1.5;     // attention, router, sums
    double readback_ms = 0;  // time of the copy from a worker's GPU to its main memory
    double rtt_ms = 0;       // there and back
    double expert_ms = 0;    // time that a worker needs to compute an expert
    double sigma = 0;        // log-normal sigma of the sum of rtt_ms and expert_ms
    double hub_row_ms = 0, expert_row_ms = 0;
    // throughput of the hub's connection in each direction; 0: bytes take no time
    double mbit_s = 0;
};
struct RoundShape {
    std::uint32_t num_moe_layers = 48, num_experts = 128, top_k = 8;
    std::uint32_t hidden_size = 2048, moe_intermediate_size = 768;
};

// Returns the size of the experts that one worker holds, in bytes (eq. 3).
double worker_bytes(const RoundShape& shape, double bits, double replicas, double workers);
// Returns the number of distinct experts that `rows` rows request in a layer, if all experts are
// equally likely.
double experts_asked(const RoundShape& shape, double rows);
// Returns the number of distinct workers that hold `calls` experts, if each expert is held by a
// random worker.
double workers_asked(double calls, double workers);

// Which calls of one layer and row have independent times.
enum class Stalls : std::uint8_t {
    calls,   // each call has its own independent time (the paper's assumption)
    workers  // all calls of a worker take the same time: as many times as requested workers
};
// Returns the time of a round of `rows` rows, with each call sent to `copies` workers (eq. 11,
// 18).
double dispatch_ms(const RoundShape& shape, const LayerTimes& times, double rows, double copies,
                   double workers, Stalls stalls);
// Returns the time of a pass of `rows` rows over all layers (eq. 10, 12); eq. 13 gives rows per
// second.
double pass_ms(const RoundShape& shape, const LayerTimes& times, double rows, double copies,
               double workers, Stalls stalls);

// Returns the time of a pass of `rows` rows if `spans` contributors compute all layers whole except
// `layers_here`, which have a round of experts each as in pass_ms() with one copy. A span takes one
// trip, in which rows travel as f32, and the layers' own times. Keys and values that come back are
// not counted.
double spans_ms(const RoundShape& shape, const LayerTimes& times, double rows, double spans,
                double layers_here, double workers);

// Returns the mean number of tokens that a step yields with `drafts` drafted tokens, if each draft
// is accepted with the same probability (0 to 1) and none counts behind the first one that is
// rejected. Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
// 2023, eq. 1.
double tokens_per_step(double acceptance, double drafts);

// The counts and times that a hub measured over some period.
struct HubFigures {
    // numbers of passes, of rows in them, and of layers sent to workers
    double steps = 0, rows = 0, rounds = 0;
    // duration of all passes, and the part spent waiting for workers
    double step_s = 0, waited_s = 0;
    double copies = 1;  // number of workers to which each call is sent at once
    double calls_local = 0, calls = 0;
    std::vector<AskedWorker> workers;
};
struct StepForecast {
    double hub_ms = 0;    // measured time of a pass without the waiting for workers
    double round_ms = 0;  // forecast time of a layer's round
    double step_ms = 0, measured_ms = 0;
    double deviation() const { return step_ms / measured_ms - 1; }
};
// Computes a forecast. Requires that `figures` has at least one step and one round.
StepForecast forecast(const HubFigures& figures);

}  // namespace moex
