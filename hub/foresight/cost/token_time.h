// What a token takes, what a worker holds and how fast a prompt is read, from the parts that a
// layer is made of; and the same from what a running hub has measured of its parts.
// Source: "MoEx", eq. 3 and 10 to 13. Other than there a round trip counts once a layer (two ways
// are one), bytes pass one line, and a round ends with the slowest worker, not with the first.
#pragma once

#include <cstdint>
#include <vector>

#include "hub/foresight/cost/round_time.h"

namespace moex {

// What a layer is made of; times of one row, and what each further row of a chunk adds.
struct LayerTimes {
    double hub_ms = 1.5;     // attention, router, sums
    double readback_ms = 0;  // a worker's GPU to its memory
    double rtt_ms = 0;       // there and back
    double expert_ms = 0;    // a worker's own
    double sigma = 0;        // of a round trip with its expert, log-normal
    double hub_row_ms = 0, expert_row_ms = 0;
    double mbit_s = 0;  // of the hub's line, one way; 0: bytes take no time
};
struct RoundShape {
    std::uint32_t num_moe_layers = 48, num_experts = 128, top_k = 8;
    std::uint32_t hidden_size = 2048, moe_intermediate_size = 768;
};

// Bytes of experts that a worker holds (eq. 3).
double worker_bytes(const RoundShape& shape, double bits, double replicas, double workers);
// Distinct experts of a layer that so many rows ask for, were all alike.
double experts_asked(const RoundShape& shape, double rows);
// Distinct workers that `calls` experts lie at, where each lies anywhere alike.
double workers_asked(double calls, double workers);

// How the calls of a layer and row depend on each other.
enum class Stalls : std::uint8_t {
    calls,   // each for itself: as many as experts (the paper's)
    workers  // a worker's all at once: as many as workers that are asked
};
// One round of `rows` rows, each call at `copies` workers (eq. 11, 18).
double dispatch_ms(const RoundShape& shape, const LayerTimes& times, double rows, double copies,
                   double workers, Stalls stalls);
// A pass over all layers of so many rows (eq. 10, 12); the rows a second are eq. 13's.
double pass_ms(const RoundShape& shape, const LayerTimes& times, double rows, double copies,
               double workers, Stalls stalls);

// What a hub counted and measured over some time.
struct HubFigures {
    double steps = 0, rows = 0, rounds = 0;  // passes, their rows, layers exchanged
    double step_s = 0, waited_s = 0;         // in passes; of that for experts
    double copies = 1;                       // of a call that are asked at once
    double calls_local = 0, calls = 0;
    std::vector<AskedWorker> workers;
};
struct StepForecast {
    double hub_ms = 0;    // of a pass, measured: all but waiting
    double round_ms = 0;  // of one layer's exchange
    double step_ms = 0, measured_ms = 0;
    double deviation() const { return step_ms / measured_ms - 1; }
};
// Requires steps and rounds.
StepForecast forecast(const HubFigures& figures);

}  // namespace moex
