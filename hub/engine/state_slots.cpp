#include "hub/engine/state_slots.h"

#include <utility>

#include "hub/engine/delta_rule.h"
#include "protocol/check.h"
#include "protocol/text.h"

namespace moex {

StateSlot::~StateSlot() {
    slots_.free_.push_back(number);
    if (is_copy) --slots_.num_copies_;
}

StateSlots::StateSlots(const StateSlotSizes& sizes, std::function<bool()> evict)
    : sizes_(sizes),
      evict_(std::move(evict)) {
    for (std::uint32_t i = sizes.num_slots(); i-- > 0;) free_.push_back(i);
    for (std::uint32_t i = sizes.sequences_max; i-- > 0;) free_journals_.push_back(i);
}

StateSlotPtr StateSlots::take(std::uint32_t num_tokens, bool is_copy) {
    MOEX_CHECK(!free_.empty(), text("all ", sizes_.num_slots(), " states are in use"));
    const std::uint32_t number = free_.back();
    free_.pop_back();
    num_copies_ += is_copy;
    return std::make_shared<StateSlot>(*this, number, num_tokens, is_copy);
}

StateSlotPtr StateSlots::take(std::uint32_t num_tokens) { return take(num_tokens, false); }

StateSlotPtr StateSlots::take_copy(std::uint32_t num_tokens) {
    return find_room_for_copy() ? take(num_tokens, true) : nullptr;
}

bool StateSlots::make_copy(StateSlot& slot) {
    if (slot.is_copy) return true;
    if (!find_room_for_copy()) return false;
    slot.is_copy = true;
    ++num_copies_;
    return true;
}

bool StateSlots::find_room_for_copy() {
    while (num_copies_ >= sizes_.copies_max)
        if (!evict_()) return false;
    return true;
}

std::uint32_t StateSlots::take_journal() {
    MOEX_CHECK(!free_journals_.empty(), "more sequences than journals");
    const std::uint32_t number = free_journals_.back();
    free_journals_.pop_back();
    return number;
}

std::uint64_t StateSlots::state_bytes() const {
    const std::size_t slots = sizes_.num_slots() - free_.size() - num_copies_,
                      journals = sizes_.sequences_max - free_journals_.size();
    return slots * sizes_.slot_bytes + journals * sizes_.journal_bytes;
}

SlotState::SlotState(StateSlots& slots, std::uint32_t page_tokens)
    : slots_(slots),
      page_tokens_(page_tokens) {}

SlotState::~SlotState() {
    set_border(nullptr);
    if (journal_) slots_.give_journal(*journal_);
}

void SlotState::begin_step(std::uint32_t num_rows) {
    abandon_step();
    first_ = end_;
    num_rows_ = num_rows;
    may_roll_back_ = num_rows > 1 && num_rows <= delta_append_max;
    if (may_roll_back_ && !journal_) journal_ = slots_.take_journal();

    const std::uint32_t end = may_roll_back_ ? first_ : first_ + num_rows;
    next_ = end > kept_from() ? slots_.take(end) : slot_;
    choose_border(end);
}

// Chooses where the state at the last end of a page is kept, if the step reaches one before it has
// stored the state after `end` tokens.
void SlotState::choose_border(std::uint32_t end) {
    if (border_ && slots_.has_many_borders()) set_border(nullptr);
    const std::uint32_t border = end / page_tokens_ * page_tokens_;
    if (border <= kept_from()) return;
    set_border(nullptr);
    if (slots_.has_many_borders()) return;
    next_border_ = border == end ? next_ : slots_.take_copy(border);
}

StateRun SlotState::next_run(std::uint32_t num_rows) {
    const std::uint32_t first = first_ + done_, from_at = is_stored_ ? stored_at_ : kept_from();
    done_ += num_rows;
    MOEX_CHECK(done_ <= num_rows_, text(done_, " rows in a step of ", num_rows_));
    StateRun run{.from = is_stored_ ? next_ : slot_,
                 .position = from_at,
                 .num_replayed = first - from_at,
                 .keeps_rows = may_roll_back_};
    if (may_roll_back_ && (is_stored_ || next_ == slot_)) return run;

    stored_at_ = may_roll_back_ ? first_ : first_ + done_;
    is_stored_ = true;
    run.to[0] = next_;
    run.after[0] = stored_at_ - from_at;
    const bool passes_border = next_border_ && next_border_ != next_ &&
                               next_border_->num_tokens > from_at &&
                               next_border_->num_tokens <= stored_at_;
    if (!passes_border) return run;
    run.to[1] = next_border_;
    run.after[1] = next_border_->num_tokens - from_at;
    return run;
}

void SlotState::commit() {
    MOEX_CHECK(done_ == num_rows_, text(done_, " of ", num_rows_, " rows were computed"));
    if (next_border_ && slots_.make_copy(*next_border_)) set_border(next_border_);
    slot_ = std::move(next_);
    end_ = first_ + num_rows_;
    abandon_step();
}

void SlotState::abandon_step() {
    next_.reset();
    next_border_.reset();
    num_rows_ = done_ = 0;
    is_stored_ = false;
}

void SlotState::roll_back(std::uint32_t num_tokens) {
    abandon_step();
    MOEX_CHECK(num_tokens == 0 || (num_tokens >= kept_from() && num_tokens <= end_),
               text("a state of ", kept_from(), " to ", end_, " tokens goes to ", num_tokens));
    if (num_tokens == 0) {
        slot_.reset();
        set_border(nullptr);
    }
    end_ = num_tokens;
}

void SlotState::restore(StateSlotPtr slot) {
    abandon_step();
    end_ = slot->num_tokens;
    slot_ = std::move(slot);
}

void SlotState::set_border(StateSlotPtr slot) {
    slots_.count_border((slot ? 1 : 0) - (border_ ? 1 : 0));
    border_ = std::move(slot);
}

}  // namespace moex
