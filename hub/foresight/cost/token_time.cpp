#include "hub/foresight/cost/token_time.h"

#include <algorithm>
#include <cmath>

#include "protocol/check.h"

namespace moex {
namespace {

// Returns the bytes that a row takes on the link to or from a worker: its values in f16 and the
// header of the frame.
double row_bytes(const RoundShape& shape) { return 2.0 * shape.hidden_size + 28; }

}  // namespace

double worker_bytes(const RoundShape& shape, double bits, double replicas, double workers) {
    const double expert = 3.0 * shape.hidden_size * shape.moe_intermediate_size * bits / 8;
    return replicas * shape.num_experts / workers * shape.num_moe_layers * expert;
}

double experts_asked(const RoundShape& shape, double rows) {
    const double left_out = 1 - static_cast<double>(shape.top_k) / shape.num_experts;
    return shape.num_experts * (1 - std::pow(left_out, rows));
}

double workers_asked(double calls, double workers) {
    return workers * (1 - std::pow(1 - 1 / workers, calls));
}

double dispatch_ms(const RoundShape& shape, const LayerTimes& times, double rows, double copies,
                   double workers, Stalls stalls) {
    const double experts = experts_asked(shape, rows);
    const double independent = stalls == Stalls::workers ? workers_asked(experts, workers)
                                                         : experts;
    const AnswerTime answer{
        .median_ms = times.rtt_ms + times.expert_ms + (rows - 1) * times.expert_row_ms,
        .sigma = times.sigma};
    // The hub's connection first carries all copies of the calls out and then the same number of
    // answers in.
    const double bytes = 2 * rows * shape.top_k * copies * row_bytes(shape);
    const double line_ms = times.mbit_s > 0 ? bytes * 8 / (1e3 * times.mbit_s) : 0;
    return slowest_ms(answer, independent, copies) + line_ms;
}

double pass_ms(const RoundShape& shape, const LayerTimes& times, double rows, double copies,
               double workers, Stalls stalls) {
    const double hub_ms = times.hub_ms + (rows - 1) * times.hub_row_ms + times.readback_ms;
    return shape.num_moe_layers *
           (hub_ms + dispatch_ms(shape, times, rows, copies, workers, stalls));
}

double spans_ms(const RoundShape& shape, const LayerTimes& times, double rows, double spans,
                double layers_here, double workers) {
    const double here_ms = layers_here / shape.num_moe_layers *
                           pass_ms(shape, times, rows, 1, workers, Stalls::workers);
    const double layer_ms = times.hub_ms + times.expert_ms +
                            (rows - 1) * (times.hub_row_ms + times.expert_row_ms);
    const double bytes = 2 * rows * 4 * shape.hidden_size;
    const double line_ms = times.mbit_s > 0 ? bytes * 8 / (1e3 * times.mbit_s) : 0;
    return here_ms + (shape.num_moe_layers - layers_here) * layer_ms +
           spans * (times.rtt_ms + times.readback_ms + line_ms);
}

double tokens_per_step(double acceptance, double drafts) {
    if (acceptance >= 1) return drafts + 1;
    return (1 - std::pow(acceptance, drafts + 1)) / (1 - acceptance);
}

StepForecast forecast(const HubFigures& figures) {
    MOEX_CHECK(figures.steps > 0 && figures.rounds > 0, "figures of nothing");
    StepForecast said{.hub_ms = 1e3 * (figures.step_s - figures.waited_s) / figures.steps,
                      .round_ms = round_ms(figures.workers, figures.copies),
                      .measured_ms = 1e3 * figures.step_s / figures.steps};
    said.step_ms = said.hub_ms + figures.rounds / figures.steps * said.round_ms;
    return said;
}

}  // namespace moex
