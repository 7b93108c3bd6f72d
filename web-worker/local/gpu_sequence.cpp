#include "web-worker/local/gpu_sequence.h"

#include <algorithm>
#include <iterator>

#include "protocol/text.h"

namespace moex {
namespace {

DeltaRun run_of(const StateRun& wanted, std::uint32_t num_rows, std::uint32_t journal) {
    DeltaRun run{.journal = journal,
                 .position = wanted.position,
                 .num_replayed = wanted.num_replayed,
                 .num_rows = num_rows,
                 .num_first = num_rows,
                 .keeps_rows = wanted.keeps_rows ? 1u : 0u};
    if (wanted.from) run.from_slot = wanted.from->number;
    for (const std::size_t i : {0, 1}) {
        if (wanted.to[i]) run.to_slots[i] = wanted.to[i]->number;
        run.store_after[i] = wanted.after[i];
    }
    return run;
}

}  // namespace

StateSlotSizes GpuSequence::places_for(const DecoderModel& model) {
    StateSlotSizes places;
    if (!model.has_delta()) return places;
    std::uint64_t num_layers = 0;
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer)
        num_layers += model.is_delta(layer);
    places.sequences_max = 1;
    places.slot_bytes = num_layers * DecoderMemory::state_bytes(model);
    places.journal_bytes = num_layers * DecoderMemory::journal_bytes(model);
    places.copies_max = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(state_bytes_max / places.slot_bytes, states_min, states_max));
    return places;
}

GpuSequence::GpuSequence(GpuDecoder& decoder, const StateSlotSizes& places)
    : decoder_(decoder),
      places_(places) {
    if (!has_states()) return;
    slots_ = std::make_unique<StateSlots>(places_, [this] { return drop_state(); });
    state_ = std::make_unique<SlotState>(*slots_, kv_page_tokens);
}

// Drops the state that costs least: where an edit behind it would compute few tokens again, beside
// the tokens between the edit and the end of the text. The latest one and the held one stay.
//   states after 128, 256, ..., 1024: 128 is dropped first, then 384; those at the end stay dense
bool GpuSequence::drop_state() {
    auto cheapest = kept_.end();
    double cost_min = 0;
    for (auto at = kept_.begin(); at != kept_.end(); ++at) {
        const auto next = std::next(at);
        if (at->second.use_count() > 1 || next == kept_.end() || at->first == held_state_) continue;
        const std::uint32_t before = at == kept_.begin() ? 0 : std::prev(at)->first;
        const double behind = kept_.rbegin()->first - before,
                     cost = (next->first - before) / behind;
        if (cheapest != kept_.end() && cost >= cost_min) continue;
        cheapest = at;
        cost_min = cost;
    }
    if (cheapest == kept_.end()) return false;
    kept_.erase(cheapest);
    return true;
}

DeltaRun GpuSequence::begin_step(std::uint32_t num_rows) {
    state_->begin_step(num_rows);
    const StateRun wanted = state_->next_run(num_rows);
    return run_of(wanted, num_rows, state_->journal());
}

void GpuSequence::commit() {
    state_->commit();
    if (const StateSlotPtr& border = state_->border()) kept_[border->num_tokens] = border;
}

Status GpuSequence::begin_early(TokenIds tokens, std::function<void(std::uint32_t)> on_layers) {
    if (!has_states()) return decoder_.begin_early(tokens, std::move(on_layers));
    const auto num_rows = static_cast<std::uint32_t>(tokens.size());
    const DeltaRun run = begin_step(num_rows);
    if (const Status begun = decoder_.begin_early(tokens, std::move(on_layers), &run);
        !begun.ok()) {
        state_->abandon_step();
        return begun;
    }
    early_end_ = decoder_.num_tokens() + num_rows;
    return {};
}

// Ends a step of rows that are read early: all layers have computed them, or they are given up.
void GpuSequence::end_early() {
    const std::uint32_t end = std::exchange(early_end_, 0);
    if (end == 0) return;
    if (decoder_.is_whole() && decoder_.num_tokens() == end) return commit();
    state_->abandon_step();
}

Status GpuSequence::feed(TokenIds tokens, StepLogits logits) {
    if (!has_states()) return decoder_.feed(tokens, logits);
    MOEX_TRY(check_tokens(decoder_, tokens));
    end_early();
    const auto num_rows = static_cast<std::uint32_t>(tokens.size());
    const DeltaRun run = begin_step(num_rows);
    if (const Status fed = decoder_.feed(tokens, logits, &run); !fed.ok()) {
        state_->abandon_step();
        return fed;
    }
    commit();
    return {};
}

void GpuSequence::rewind(std::uint32_t num_tokens) {
    if (!has_states()) return decoder_.rewind(num_tokens);
    MOEX_CHECK(num_tokens <= decoder_.num_tokens(),
               text(num_tokens, " of ", decoder_.num_tokens(), " tokens"));
    go_to(num_tokens);
}

void GpuSequence::resume(std::uint32_t num_tokens) {
    if (!has_states()) return decoder_.resume(num_tokens);
    go_to(num_tokens);
}

// Continues after as many of `num_tokens` tokens as there is a state for.
void GpuSequence::go_to(std::uint32_t num_tokens) {
    end_early();
    kept_.erase(kept_.upper_bound(num_tokens), kept_.end());
    const std::uint32_t last_kept = kept_.empty() ? 0 : kept_.rbegin()->first,
                        here = std::min(num_tokens, decoder_.num_tokens());
    if (here >= state_->kept_from() && here >= last_kept) {
        state_->roll_back(here);
        return decoder_.resume(here);
    }
    state_.reset();  // gives its journal back
    state_ = std::make_unique<SlotState>(*slots_, kv_page_tokens);
    if (last_kept > 0) state_->restore(kept_.rbegin()->second);
    decoder_.resume(last_kept);
}

// Returns the state after `num_tokens` tokens, null if it is not kept.
StateSlotPtr GpuSequence::slot_of(std::uint32_t num_tokens) const {
    const auto found = kept_.find(num_tokens);
    if (found != kept_.end()) return found->second;
    const bool is_latest = state_ && num_tokens > 0 && state_->kept_from() == num_tokens;
    return is_latest ? state_->latest() : nullptr;
}

void GpuSequence::read_state(std::uint32_t num_tokens, std::span<std::byte> state,
                             std::function<void(Status)> done) {
    const StateSlotPtr slot = slot_of(num_tokens);
    if (!slot)
        return done(
            Error{ErrorCode::not_found, text("no state is kept after ", num_tokens, " tokens")});
    if (state.size() != state_bytes())
        return done(Error{ErrorCode::payload_size,
                          text("a state has ", state_bytes(), " bytes, not ", state.size())});
    decoder_.read_state(slot->number, state, std::move(done));
}

Status GpuSequence::write_state(std::uint32_t num_tokens, ByteView state) {
    if (!has_states() || state.size() != state_bytes())
        return Error{ErrorCode::payload_size,
                     text("a state has ", state_bytes(), " bytes, not ", state.size())};
    kept_.erase(num_tokens);
    const StateSlotPtr slot = slots_->take_copy(num_tokens);
    if (!slot) return Error{ErrorCode::overloaded, "no place for a state is free"};
    decoder_.write_state(slot->number, state);
    kept_[num_tokens] = slot;
    return {};
}

}  // namespace moex
