// The data layouts that the decoder and its kernels share. The kernels in wgsl/decoder use the same
// names.
#pragma once

#include <cstdint>

#include "kernels_constants.h"

namespace moex {

// The buffer `rows` has a header, then a StepRow for each row of the step.
inline constexpr std::uint32_t step_header_words = gpu::kernels::argmax_take::rows_word;
inline constexpr std::uint32_t kv_page_tokens = gpu::kernels::attend_page::page_tokens;

// The header of the GPU buffer `rows`, which describes the rows of a step.
struct StepHeader {
    std::uint32_t head_row = 0;  // the first row for which logits are computed
    std::uint32_t num_rows = 0;
    std::uint32_t part_pages = 0;  // capacity for parts of attention, in pages per row
    std::uint32_t chosen = 0;      // count of chosen tokens, written by the GPU only
};
static_assert(gpu::kernels::argmax_take::head_row_word == 0 &&
                  gpu::kernels::argmax_take::num_rows_word == 1 &&
                  gpu::kernels::argmax_take::part_pages_word == 2 &&
                  gpu::kernels::argmax_take::chosen_word == 3,
              "StepHeader is what the kernels read");

// One row of a step: a token at a position of its sequence.
struct StepRow {
    std::uint32_t token = 0, position = 0;
    std::uint32_t first_page = 0;  // index of the sequence's first page in `page_table`
    std::uint32_t unused = 0;
};
static_assert(sizeof(StepRow) == 16, "the kernels step by 4 words");

// The likeliest tokens of one row, as the kernel likeliest_merge returns them.
struct LikeliestList {
    static constexpr std::uint32_t kept = gpu::kernels::likeliest_merge::kept;
    struct Candidate {
        float logit = 0;
        std::uint32_t token = 0;  // no_token in entries that a small vocabulary leaves empty
    };
    // peak: the largest logit. exp_sum: sum of exp(logit - peak) over the vocabulary; NaN if a
    // logit is not a number.
    float peak = 0, exp_sum = 0;
    Candidate candidates[kept];  // by descending logit; on ties, the lower token first
};
static_assert(sizeof(LikeliestList) == 4 * gpu::kernels::likeliest_merge::list_words,
              "the kernels step by list_words");

// Uniform of the kernel embed: the rows of the embedding table that one buffer holds.
struct TableShard {
    std::uint32_t first_token = 0, num_tokens = 0, scale_zero_word = 0, unused = 0;
};
static_assert(sizeof(TableShard) == 16);

// Uniform of the kernels expert_gate_up and expert_down: the experts of a layer that an arena
// holds.
struct ArenaPlace {
    std::uint32_t first_expert = 0, num_experts = 0, expert_words = 0, unused = 0;
};
static_assert(sizeof(ArenaPlace) == 16);

}  // namespace moex
