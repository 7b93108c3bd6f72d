#include "web-worker/spans/span_states.h"

#include "protocol/check.h"

namespace moex {

static_assert(span_kept_rows == DeltaRun::replayed_max, "PROTOCOL.md has the number");

SpanStates::SpanStates(std::uint32_t sequences_max) {
    for (std::uint32_t slot = num_slots(sequences_max); slot-- > 0;) slots_.push_back(slot);
    for (std::uint32_t journal = sequences_max; journal-- > 0;) journals_.push_back(journal);
}

SpanVerdict SpanStates::check(std::span<const SpanSequence> sequences) const {
    std::size_t num_new = 0;
    for (const SpanSequence& one : sequences) {
        const auto found = sequences_.find(one.id);
        if (found == sequences_.end()) ++num_new;
        if (one.num_before == 0) continue;
        if (found == sequences_.end() || one.num_before < found->second.num_tokens ||
            one.num_before > found->second.end)
            return SpanVerdict::unknown_sequence;
    }
    return has_room(num_new) ? SpanVerdict::done : SpanVerdict::no_pages;
}

SpanStates::Sequence& SpanStates::sequence(std::uint64_t id) {
    const auto [at, is_new] = sequences_.try_emplace(id);
    if (is_new) {
        MOEX_CHECK(!journals_.empty(), "a journal for each sequence");
        at->second.journal = journals_.back();
        journals_.pop_back();
    }
    return at->second;
}

std::uint32_t SpanStates::take_slot() {
    MOEX_CHECK(!slots_.empty(), "two slots for each sequence");
    const std::uint32_t slot = slots_.back();
    slots_.pop_back();
    used_.insert(slot);
    return slot;
}

std::vector<DeltaRun> SpanStates::begin(std::span<const SpanSequence> sequences) {
    std::vector<DeltaRun> runs;
    std::uint32_t first_row = 0;
    std::vector<std::uint32_t> passed;
    for (const SpanSequence& one : sequences) {
        Sequence& mine = sequence(one.id);
        if (one.num_before == 0) {
            if (mine.slot != DeltaRun::no_slot) passed.push_back(mine.slot);
            mine = {.journal = mine.journal};
        }
        const std::uint32_t replayed = one.num_before - mine.num_tokens;
        const bool keeps = one.num_rows <= DeltaRun::replayed_max;
        DeltaRun run{.from_slot = mine.slot,
                     .journal = mine.journal,
                     .position = mine.num_tokens,
                     .num_replayed = replayed,
                     .num_rows = one.num_rows,
                     .first_row = first_row,
                     .num_first = one.num_rows,
                     .keeps_rows = keeps ? 1u : 0u};
        // Nothing is stored where the slot has the state before the rows already.
        const std::uint32_t stored_after = keeps ? replayed : replayed + one.num_rows;
        if (stored_after > 0) {
            run.to_slots[0] = take_slot();
            run.store_after[0] = stored_after;
            if (mine.slot != DeltaRun::no_slot) passed.push_back(mine.slot);
            mine.slot = run.to_slots[0];
        }
        mine.num_tokens += stored_after;
        mine.end = one.num_before + one.num_rows;
        first_row += one.num_rows;
        runs.push_back(run);
    }
    // The step reads these slots, so that no run of it may store there.
    for (const std::uint32_t slot : passed) slots_.push_back(slot);
    return runs;
}

std::optional<std::uint32_t> SpanStates::bring(std::uint64_t id, std::uint32_t num_tokens) {
    if (!sequences_.contains(id) && !has_room(1)) return std::nullopt;
    Sequence& mine = sequence(id);
    if (mine.slot == DeltaRun::no_slot) mine.slot = take_slot();
    mine.num_tokens = mine.end = num_tokens;
    return mine.slot;
}

void SpanStates::end(std::uint64_t id, Freed& freed) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;
    if (found->second.slot != DeltaRun::no_slot) slots_.push_back(found->second.slot);
    for (const std::uint32_t slot : slots_)
        if (used_.erase(slot) > 0) freed.slots.push_back(slot);
    freed.journals.push_back(found->second.journal);
    journals_.push_back(found->second.journal);
    sequences_.erase(found);
}

void SpanStates::end_all(Freed& freed) {
    while (!sequences_.empty()) end(sequences_.begin()->first, freed);
}

}  // namespace moex
