// The data layouts that the decoder and its kernels share. The kernels in wgsl/decoder use the same
// names.
#pragma once

#include <cstdint>
#include <span>

#include "kernels_constants.h"
#include "protocol/check.h"
#include "protocol/result.h"
#include "protocol/text.h"

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

// A run: the rows of one sequence in a pass, with consecutive positions, as the kernels of a gated
// delta rule for several sequences compute them (wgsl/decoder/delta_runs.wgsl).
//   The slot 4 has the state after 100 tokens, and 2 of 3 drafted rows from position 100 on were
//   accepted. Then {.from_slot = 4, .to_slots = {7, no_slot}, .store_after = {2, 0}, .position =
//   100, .num_replayed = 2, .num_rows = 1} computes the row of position 102, and stores the state
//   after 102 tokens.
struct DeltaRun {
    static constexpr std::uint32_t no_slot = ~0u;
    static constexpr std::uint32_t journal_rows = gpu::kernels::delta_rule_runs::journal_rows;
    static constexpr std::uint32_t replayed_max = journal_rows / 2;
    std::uint32_t from_slot = no_slot;  // no_slot: the text begins
    std::uint32_t to_slots[2] = {no_slot, no_slot};
    std::uint32_t store_after[2] = {0, 0};  // rows, replayed ones included; 0: nothing is stored
    std::uint32_t journal = 0;
    std::uint32_t position = 0;  // of the first row, replayed ones included
    std::uint32_t num_replayed = 0;
    std::uint32_t num_rows = 0;  // rows of the pass
    // The run's rows of the pass are num_first rows from first_row on, then those from next_row on.
    std::uint32_t first_row = 0, num_first = 0, next_row = 0;
    std::uint32_t mixed_at = 0;    // set by GpuDecoder::start()
    std::uint32_t keeps_rows = 0;  // 1: the rows' inputs are kept in the journal
    std::uint32_t unused[2] = {0, 0};
};
static_assert(sizeof(DeltaRun) == 4 * gpu::kernels::delta_rule_runs::run_words,
              "the kernels step by run_words");
static_assert(gpu::kernels::delta_rule_runs::to_slot_word == 1 &&
                  gpu::kernels::delta_rule_runs::store_after_word == 3 &&
                  gpu::kernels::delta_rule_runs::position_word == 6 &&
                  gpu::kernels::delta_rule_runs::num_rows_word == 8 &&
                  gpu::kernels::delta_rule_runs::next_row_word == 11 &&
                  gpu::kernels::delta_rule_runs::keeps_rows_word == 13,
              "DeltaRun is what the kernels read");

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

// The rows of a step for which logits are computed.
enum class StepLogits {
    none,
    last,             // logits of the last token
    every,            // logits of all tokens; at most logit_rows_max() tokens
    likeliest,        // likeliest tokens after the last token; needs finds_likeliest()
    every_likeliest,  // likeliest tokens after each token; needs both
};

// Returns the error of a step with tokens that are too many, or unknown to `decoder`: a GpuDecoder
// or a SequenceDecoder.
template <class Decoder>
Status check_tokens(const Decoder& decoder, std::span<const std::uint32_t> tokens) {
    const auto wrong = [](auto&&... words) {
        return Error{ErrorCode::invalid_argument, text(words...)};
    };
    MOEX_CHECK(decoder.is_whole(), "layers of this model are still on their way");
    if (tokens.empty() || tokens.size() > decoder.rows_max())
        return wrong("a step of ", tokens.size(), " tokens, want 1 to ", decoder.rows_max());
    if (decoder.num_tokens() + tokens.size() > decoder.context_tokens())
        return wrong("the sequence would have ", decoder.num_tokens() + tokens.size(),
                     " tokens, the cache has room for ", decoder.context_tokens());
    for (const std::uint32_t token : tokens)
        if (token >= decoder.vocab_size())
            return wrong("token ", token, ", the vocabulary has ", decoder.vocab_size());
    return {};
}

}  // namespace moex
