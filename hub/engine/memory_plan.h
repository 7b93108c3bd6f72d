// How the engine divides the memory of its texts (EngineOptions::kv_bytes_max):
//   states    the recurrent states of `sequences_max` sequences, and second ones for the prompts of
//             a step (recurrent_state.h); where a device stores them, a second one for each
//             sequence, and a journal (state_slots.h)
//   copies    copies of states, for texts that begin alike (recurrent_snapshots.h)
//   drafts    what sources of drafts keep of the running sequences
//   pages     keys and values: the rest
// All but the pages is set aside at the start, so that a sequence that is admitted has its state. A
// model without recurrent states has pages and drafts only.
#pragma once

#include <cstdint>
#include <optional>

#include "hub/engine/draft_source.h"
#include "hub/engine/recurrent_state.h"
#include "hub/engine/state_slots.h"
#include "hub/model/config.h"
#include "protocol/result.h"

namespace moex {

struct MemoryNeeds {
    std::uint64_t bytes_max = 0;  // of all parts
    std::uint32_t sequences_max = 0, page_tokens = 0;
    std::uint64_t page_bytes = 0;
    std::optional<std::uint64_t> copy_bytes_max;  // empty: a quarter of bytes_max
    // Set if a device stores the states: their sizes are then those of its slots.
    StateSlotSizes slots;
    std::uint64_t companion_bytes = 0;  // beside each copy in a slot
    DraftMemory drafts;                 // of all sources together
};

struct MemoryPlan {
    std::uint64_t state_bytes = 0;    // of one state
    std::uint64_t journal_bytes = 0;  // of a sequence, where a device stores the states
    std::uint32_t sequences_max = 0, second_states = 0;
    std::uint64_t copy_bytes_max = 0, draft_bytes_max = 0;
    std::uint32_t num_pages = 0;

    std::uint64_t state_bytes_max() const {
        return state_bytes * (std::uint64_t{sequences_max} + second_states) +
               journal_bytes * sequences_max;
    }
    // Error: no_space if not one page is left.
    static Result<MemoryPlan> make(const ModelConfig& config, const MemoryNeeds& needs);
};

// The number of prompts that may have more than delta_append_max rows in one step, each of which
// needs a second state until the end of the step. Such states take at most 256 MB, but two are
// always allowed.
std::uint32_t second_states_max(const RecurrentShape& shape, std::uint32_t sequences_max);

}  // namespace moex
