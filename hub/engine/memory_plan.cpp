#include "hub/engine/memory_plan.h"

#include <algorithm>

namespace moex {

std::uint32_t second_states_max(const RecurrentShape& shape, std::uint32_t sequences_max) {
    constexpr std::uint64_t bytes = 256ull << 20, least = 2;
    if (shape.num_layers == 0) return 0;
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(sequences_max, std::max(least, bytes / shape.size_bytes())));
}

Result<MemoryPlan> MemoryPlan::make(const ModelConfig& config, const MemoryNeeds& needs) {
    const RecurrentShape shape = RecurrentShape::of(config);
    MemoryPlan plan{.state_bytes = shape.size_bytes(),
                    .sequences_max = needs.sequences_max,
                    .second_states = second_states_max(shape, needs.sequences_max)};
    if (config.has_delta_net())
        plan.copy_bytes_max = needs.copy_bytes_max.value_or(needs.bytes_max / 4);
    if (const StateSlotSizes& slots = needs.slots; slots.sequences_max > 0) {
        plan.state_bytes = slots.slot_bytes;
        plan.second_states = slots.sequences_max;
        plan.journal_bytes = slots.journal_bytes;
        plan.copy_bytes_max = slots.copies_max * (slots.slot_bytes + needs.companion_bytes);
    }
    const std::uint64_t drafts = needs.sequences_max * needs.drafts.sequence_bytes,
                        others = plan.state_bytes_max() + plan.copy_bytes_max + drafts;
    if (others >= needs.bytes_max)
        return Error{ErrorCode::no_space,
                     text("the recurrent states of ", needs.sequences_max,
                          " sequences, copies of them and drafts need ", others >> 20,
                          " MB, not less than the ", needs.bytes_max >> 20,
                          " MB for keys and values; set --kv-mb, --state-mb or --sequences-max")};

    const std::uint64_t page_drafts = needs.page_tokens * needs.drafts.token_bytes,
                        affordable = (needs.bytes_max - others) / (needs.page_bytes + page_drafts);
    if (affordable == 0)
        return Error{ErrorCode::no_space,
                     text("a key/value budget of ", needs.bytes_max, " bytes is below one page of ",
                          needs.page_bytes, " bytes")};
    const std::uint64_t most = std::uint64_t{needs.sequences_max} *
                               ((config.context_tokens + needs.page_tokens - 1) /
                                needs.page_tokens);
    plan.num_pages = static_cast<std::uint32_t>(std::min(affordable, most));
    plan.draft_bytes_max = drafts + plan.num_pages * page_drafts;
    return plan;
}

}  // namespace moex
