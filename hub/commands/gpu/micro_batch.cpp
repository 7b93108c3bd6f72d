#include "hub/commands/gpu/micro_batch.h"

#include <algorithm>

namespace moex {

DecoderBatch MicroBatch::fill(const PlannedStep& step, std::uint32_t first, std::uint32_t count,
                              std::uint32_t number, const Form& form) {
    lane = number;
    rows.assign(step.rows.begin() + first, step.rows.begin() + first + count);
    pages.clear();
    window_pages.clear();
    sequence_rows.clear();
    DecoderBatch batch;
    for (std::uint32_t i = 0; i < count; ++i) {
        const StepRows* const sequence = step.sequence[first + i];
        sequence_rows.push_back({sequence->kv, rows[i].position, rows[i].token});
        batch.num_pages = std::max(batch.num_pages, step.num_pages[first + i]);
        if (i > 0 && sequence == step.sequence[first + i - 1]) {
            rows[i].first_page = rows[i - 1].first_page;
            continue;
        }
        rows[i].first_page = static_cast<std::uint32_t>(pages.size());
        const auto table = sequence->kv->pages();
        pages.insert(pages.end(), table.begin(), table.end());
        if (form.has_window_slots) sequence->kv->list_window_slots(window_pages);
    }
    if (form.has_states) set_runs(step, first);
    batch.rows = rows;
    batch.pages = pages;
    batch.window_pages = window_pages;
    batch.runs = runs;
    const auto num_rows = static_cast<std::uint32_t>(step.rows.size());
    const std::uint32_t first_logit = std::max(first, num_rows - step.num_logits);
    if (first + count > first_logit) batch.num_logits = first + count - first_logit;
    const std::uint32_t end_likeliest = num_rows - step.num_logits + step.num_likeliest;
    if (first_logit < end_likeliest)
        batch.num_likeliest = std::min(batch.num_logits, end_likeliest - first_logit);

    index = std::span(step.index).subspan(first, count);
    hidden_row = step.hidden_row;
    reads_rows = std::ranges::any_of(
        index, [&](std::uint32_t row) { return step.hidden_row[row] != PlannedStep::no_row; });
    batch.reads_rows = reads_rows;
    asked = std::span(step.sequence).subspan(first_logit, batch.num_likeliest);
    num_logits = batch.num_logits;
    layer = 0;
    layer_began = now_steady();
    return batch;
}

// Sets the runs of a micro-batch whose first row is row `first` of the step. A sequence has one
// run. Its rows without logits are consecutive, and so are those with logits.
void MicroBatch::set_runs(const PlannedStep& step, std::uint32_t first) {
    runs.clear();
    std::vector<const StepRows*> sequences;  // [number of runs]
    const auto num_rows = static_cast<std::uint32_t>(rows.size());
    for (std::uint32_t row = 0; row < num_rows; ++row) {
        const StepRows* const sequence = step.sequence[first + row];
        const auto found = std::find(sequences.begin(), sequences.end(), sequence);
        const std::size_t number = found - sequences.begin();
        if (found == sequences.end()) {
            sequences.push_back(sequence);
            runs.push_back({.first_row = row});
        }
        DeltaRun& run = runs[number];
        if (row == run.first_row + run.num_first)
            ++run.num_first;
        else if (run.num_rows == run.num_first)
            run.next_row = row;
        ++run.num_rows;
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        SlotState& state = sequences[i]->kv->slot_state();
        const StateRun wanted = state.next_run(runs[i].num_rows);
        DeltaRun& run = runs[i];
        if (wanted.from) run.from_slot = wanted.from->number;
        for (const std::size_t k : {0, 1}) {
            if (wanted.to[k]) run.to_slots[k] = wanted.to[k]->number;
            run.store_after[k] = wanted.after[k];
        }
        run.journal = state.journal();
        run.position = wanted.position;
        run.num_replayed = wanted.num_replayed;
        run.keeps_rows = wanted.keeps_rows ? 1 : 0;
    }
}

}  // namespace moex
