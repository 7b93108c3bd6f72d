// A micro-batch: rows of a pass that go through the layers in a lane of their own. While the
// experts of one micro-batch are computed elsewhere, the GPU computes another.
//   a pass of 6 rows, 2 lanes: rows 0 to 2 in lane 0, rows 3 to 5 in lane 1
// Owner: the engine's thread. The objects are used again from pass to pass, so that their buffers
// are not allocated again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hub/base/clock.h"
#include "hub/commands/gpu/planned_step.h"
#include "hub/engine/expert_backend.h"
#include "web-worker/decoder/gpu_decoder.h"

namespace moex {

struct MicroBatch {
    struct Form {
        bool has_window_slots = false;  // layers with a window have pages of their own
        bool has_states = false;        // the model has recurrent states
    };
    // Fills in rows [first, first + count) of `step`, in lane `number`. The result borrows from
    // this object, and `asked`, `index` and `hidden_row` from the step.
    DecoderBatch fill(const PlannedStep& step, std::uint32_t first, std::uint32_t count,
                      std::uint32_t number, const Form& form);

    std::uint32_t lane = 0;
    std::span<const std::uint32_t> index;       // for each row: index of the row in the batch
    std::span<const StepRows* const> asked;     // rows whose likeliest tokens are requested
    std::span<const std::uint32_t> hidden_row;  // of PlannedStep
    bool reads_rows = false;
    // layer of the pending round; num_layers: none is left
    std::uint32_t num_logits = 0, layer = 0;
    TimePoint layer_began{};  // for the trace
    std::vector<StepRow> rows;
    std::vector<SequenceRow> sequence_rows;  // `rows` in the form that the predictor reads
    std::vector<std::uint32_t> pages, window_pages;
    std::vector<DeltaRun> runs;  // of a model with recurrent states
    std::vector<float> x, y, expert_weights;
    std::vector<std::uint16_t> expert_ids;
    std::unique_ptr<ExpertRound> round;  // in flight

  private:
    void set_runs(const PlannedStep& step, std::uint32_t first);
};

}  // namespace moex
