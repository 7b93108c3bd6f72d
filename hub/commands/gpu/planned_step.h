// The order in which the GPU computes the rows of a step: rows without logits first, then rows that
// need only their likeliest tokens, then the other rows with logits. So the rows with logits are
// consecutive.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hub/engine/step_device.h"
#include "web-worker/decoder/step_rows.h"

namespace moex {

struct PlannedStep {
    std::vector<StepRow> rows;
    std::vector<std::uint32_t> index;      // for each row: index of the row in the batch
    std::vector<std::uint32_t> num_pages;  // for each row: KV pages of its sequence after this step
    std::vector<const StepRows*> sequence;  // for each row: its sequence
    // For each row of the batch, in its order: index of the row among those that StepRows::hidden
    // asks for; no_row for others.
    std::vector<std::uint32_t> hidden_row;
    std::uint32_t num_hidden = 0;
    static constexpr std::uint32_t no_row = ~0u;
    // number of rows with logits; number of these rows that need only their likeliest tokens
    std::uint32_t num_logits = 0, num_likeliest = 0;
};
PlannedStep plan_step(std::span<const StepRows> batch);

}  // namespace moex
