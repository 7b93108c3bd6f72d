#include "web-worker/slots/slot_cache.h"

#include <algorithm>
#include <utility>

namespace moex {
namespace {
// The most experts that are fetched for hints at a time. An expert that was fetched and waits for a
// slot counts, too.
constexpr std::size_t hints_at_once = 4;
// The most bytes that are copied from memory to slots for hints in one event of the worker's
// thread: a call that arrives meanwhile waits for no more than this.
constexpr std::uint64_t hint_bytes_per_event = 2u << 20;
// The most copies by the GPU that are in flight for hints. A copy that a group waits for goes first
// (gpu::TransferKind), but it cannot take the slots to which these copies are made.
constexpr std::uint64_t hint_transfers_at_once = 8;

constexpr std::uint8_t refused = 255;
using Table = std::array<std::array<std::uint8_t, num_expert_events>, num_expert_states>;

template <class Enum>
constexpr std::size_t index_of(Enum value) {
    return static_cast<std::size_t>(value);
}

// Converts the list of expert state transitions to a table by state and event.
constexpr Table table_of_transitions() {
    Table table{};
    for (std::size_t state = 0; state < num_expert_states; ++state) {
        for (std::uint8_t& next : table[state]) next = refused;
        const bool is_absent = state == index_of(ExpertState::absent);
        table[state][index_of(ExpertEvent::keep)] = static_cast<std::uint8_t>(
            is_absent ? index_of(ExpertState::stored) : state);
        table[state][index_of(ExpertEvent::forget)] = 0;
    }
    for (const ExpertTransition& one : expert_transitions)
        table[index_of(one.from)][index_of(one.event)] = static_cast<std::uint8_t>(one.to);
    return table;
}
static_assert(index_of(ExpertState::absent) == 0, "`forget` leads to absent");
static_assert(index_of(ExpertState::in_use) + 1 == num_expert_states, "each state has a row");
static_assert(index_of(ExpertEvent::forget) + 1 == num_expert_events, "each event has a column");
constexpr Table table = table_of_transitions();
}  // namespace

std::optional<ExpertState> next_state(ExpertState state, ExpertEvent event) {
    const std::uint8_t next = table[index_of(state)][index_of(event)];
    if (next == refused) return std::nullopt;
    return static_cast<ExpertState>(next);
}

const char* state_name(ExpertState state) {
    switch (state) {
        case ExpertState::absent: return "absent";
        case ExpertState::stored: return "stored";
        case ExpertState::fetching: return "fetching";
        case ExpertState::fetched: return "fetched";
        case ExpertState::copying: return "copying";
        case ExpertState::in_slot: return "in_slot";
        case ExpertState::copying_in_use: return "copying_in_use";
        case ExpertState::in_use: return "in_use";
    }
    return "unknown";
}

// Moves the expert to its next state, and updates the containers that are sorted by state.
void SlotCache::change(Unit unit, Entry& entry, ExpertEvent event) {
    const ExpertState from = entry.state;
    const std::optional<ExpertState> next = next_state(from, event);
    MOEX_CHECK(next, text("layer ", unit.layer, " expert ", unit.expert, " is ", state_name(from),
                          ", which does not accept event ", static_cast<int>(event)));
    if (!next || *next == from) return;

    entry.state = *next;
    if (from == ExpertState::fetching) --num_fetching_;
    if (*next == ExpertState::fetching) ++num_fetching_;
    if (*next == ExpertState::fetched) fetched_.insert(unit);
    if (from == ExpertState::fetched) {
        fetched_.erase(unit);
        entry.blob = {};
    }
    if (has_slot(from) && !has_slot(*next) && entry.rank) {
        by_rank_.erase({*entry.rank, unit});
        entry.rank.reset();
    }
}

// ---- The following functions work on the experts that the worker holds.

std::vector<Unit> SlotCache::units() const {
    std::vector<Unit> all;
    for (const auto& [unit, entry] : entries_) all.push_back(unit);
    return all;
}

std::vector<Unit> SlotCache::units_from_the_end() const {
    std::vector<Unit> all;
    for (const auto& [unit, entry] : entries_)
        if (!has_slot(entry.state)) all.push_back(unit);
    const std::vector<Unit> placed = store_.units_from_the_end();
    all.insert(all.end(), placed.begin(), placed.end());
    return all;
}

Status SlotCache::keep(Unit unit, const Sha256& hash, ByteView blob) {
    if (!holds(unit) && num_units() >= capacity() && !store_.is_lent(unit))
        return Error{ErrorCode::no_space, text("all of ", capacity(), " experts are held")};

    ++num_changes_;
    Entry& entry = entries_[unit];
    entry.hash = hash;
    change(unit, entry, ExpertEvent::keep);
    if ((has_free_slot() || store_.is_lent(unit)) && !has_slot(entry.state)) {
        MOEX_TRY(store_.put(unit, blob));
        MOEX_TRY(placed(unit, entry, ExpertEvent::put));
    }
    return {};
}

void SlotCache::forget(Unit unit) {
    ++num_changes_;
    if (const auto found = entries_.find(unit); found != entries_.end()) {
        if (has_slot(found->second.state)) drop(unit, found->second);
        change(unit, found->second, ExpertEvent::forget);
        entries_.erase(found);
    }
    std::erase(predicted_, unit);
    if (bringing() && wanted(unit))
        finish(Error{ErrorCode::unknown_expert, "released while it was being brought"});
}

Status SlotCache::resize(std::uint64_t budget_bytes) {
    const std::uint32_t slots = store_.slots_for(budget_bytes);
    for (const Unit& unit : store_.units_from_the_end())
        if (store_.num_units() > slots) drop(unit, entries_.at(unit));
    return store_.resize(budget_bytes);
}

std::vector<Unit> SlotCache::end_lending(std::uint64_t owner, bool is_readable) {
    const std::vector<Unit> lost = store_.end_lending(owner, is_readable);
    for (const Unit unit : lost) forget(unit);
    return lost;
}

UnitTier SlotCache::tier_of(Unit unit) const {
    const Entry& entry = entries_.at(unit);
    if (has_slot(entry.state)) return UnitTier::slot;
    return platform_.find_blob(entry.hash) ? UnitTier::memory : UnitTier::store;
}

// ---- The following functions work on the experts of a group.

bool SlotCache::in_slots(std::span<const Unit> units) const {
    return std::all_of(units.begin(), units.end(), [this](const Unit& unit) {
        const auto found = entries_.find(unit);
        return found != entries_.end() && has_slot(found->second.state);
    });
}

void SlotCache::count(std::span<const Unit> units) {
    judge_.asked(units, slots());
    trial_.called(platform_.now_ms());
    SlotCounters& counters = report_.status.slots;
    for (const Unit& unit : units) {
        ++counters.asked;
        const auto found = entries_.find(unit);
        if (found == entries_.end()) continue;
        Entry& entry = found->second;
        const bool is_late = entry.state == ExpertState::fetching ||
                             entry.state == ExpertState::fetched || is_copying(unit, entry);
        if (is_late) {
            ++counters.late;
        } else if (has_slot(entry.state)) {
            ++counters.resident;
            count_lead(entry);
        }
    }
}

// Counts the time from a hint to the group that it predicted. Only the two newest hints count (for
// this layer or the next one): an older hint was for another token.
void SlotCache::count_lead(Entry& entry) {
    const std::uint64_t hint = std::exchange(entry.hint, 0);
    if (hint == 0 || hint + 1 < num_hints_) return;
    ++report_.status.slots.foreseen;
    report_.status.slots.lead_ms += platform_.now_ms() - entry.hinted_ms;
}

void SlotCache::bring(std::vector<Unit> units, std::function<void(Status)> done) {
    MOEX_CHECK(!bringing(), "one group's experts are brought at a time");
    MOEX_CHECK(units.size() <= slots(), "a group of more experts than there are slots");
    group_ = std::move(units);
    done_ = std::move(done);
    load_ = std::make_shared<Load>(Load{.asked_ms = platform_.now_ms()});

    for (const Unit& unit : group_) {
        Entry& entry = entries_.at(unit);
        if (!has_slot(entry.state) && !platform_.find_blob(entry.hash)) fetch(unit, entry, true);
    }
    go_on_soon();  // places the blobs that are in memory; when it runs, all may have slots
}

void SlotCache::go_on_soon() {
    if (std::exchange(goes_on_soon_, true)) return;
    platform_.set_timer(0, [this, life = life_.watch()] {
        if (!life.alive()) return;
        goes_on_soon_ = false;
        go_on();
    });
}

// Places the blobs that are in memory, and ends the group's wait when no expert is missing.
void SlotCache::go_on() {
    Status placed = place_fetched();
    if (placed.ok() && bringing()) placed = place_group();
    if (placed.ok() && bringing() && in_slots(group_)) return finish({});
    if (placed.ok()) placed = begin_hints();
    if (placed.ok()) return;

    const auto lost = options_.lost;  // the `lost` handler may destroy this object
    lost(placed.error());
}

Status SlotCache::place_fetched() {
    for (auto next = fetched_.begin(); next != fetched_.end();) {
        const Unit unit = *next++;
        if (!has_free_slot() && !make_room(wanted(unit))) continue;
        Entry& entry = entries_.at(unit);
        if (const HeldBlob kept = platform_.find_blob(entry.hash)) {
            MOEX_TRY(place(unit, entry, kept));
        } else {
            MOEX_TRY(store_.put(unit, entry.blob));
            MOEX_TRY(placed(unit, entry, ExpertEvent::put));
        }
        ++report_.status.slots.brought;
    }
    return {};
}

// Places the group's experts whose blobs are in this machine's memory. The others are being
// fetched, or are fetched from now on: a blob may have left the memory meanwhile. If no slot is
// free, one becomes free when an expert is not in use or not being copied any more.
Status SlotCache::place_group() {
    for (const Unit& unit : group_) {
        Entry& entry = entries_.at(unit);
        if (has_slot(entry.state)) continue;
        const HeldBlob blob = platform_.find_blob(entry.hash);
        if (!blob)
            fetch(unit, entry, true);
        else if (has_free_slot() || make_room(true))
            MOEX_TRY(place_from_memory(unit, entry, blob));
    }
    return {};
}

Status SlotCache::begin_hints() {
    std::uint64_t placed_bytes = 0;
    while (!bringing() && !predicted_.empty() && num_fetching_ + fetched_.size() < hints_at_once &&
           hint_transfers_ < hint_transfers_at_once) {
        const Unit next = predicted_.back();
        predicted_.pop_back();
        const auto found = entries_.find(next);
        if (found == entries_.end()) continue;
        Entry& entry = found->second;
        if (has_slot(entry.state) || has_expired(entry)) continue;
        if (!judge_.worth(next, !has_free_slot())) continue;
        const HeldBlob blob = platform_.find_blob(entry.hash);
        if (!blob) {
            fetch(next, entry, false);
            continue;
        }

        const bool event_is_over = placed_bytes >= hint_bytes_per_event;
        if (event_is_over || (!has_free_slot() && !make_room(false))) {
            predicted_.push_back(next);
            if (event_is_over) go_on_soon();  // otherwise go_on() continues when a slot is free
            break;
        }

        MOEX_TRY(place_from_memory(next, entry, blob));
        count_hint(entry);
        if (!is_copying(next, entry)) placed_bytes += blob_bytes_;
    }
    return {};
}

// Returns true after the deadline of the hint: the group that it predicts has arrived by now, or
// will not arrive.
bool SlotCache::has_expired(const Entry& entry) {
    if (entry.expires_ms == 0 || platform_.now_ms() <= entry.expires_ms) return false;
    ++report_.status.slots.expired;
    return true;
}

void SlotCache::count_hint(Entry& entry) {
    ++report_.status.slots.prefetched;
    entry.prefetched = true;
}

Status SlotCache::place_from_memory(Unit unit, Entry& entry, const HeldBlob& blob) {
    MOEX_TRY(place(unit, entry, blob));
    ++report_.status.slots.brought;
    return {};
}

// Puts an expert into a slot. Requires a free slot. A group that is submitted from now on runs
// after the copy.
Status SlotCache::place(Unit unit, Entry& entry, const HeldBlob& blob) {
    if (!transfers_) transfers_.emplace(!store_.is_shared());
    if (!transfers_->by_gpu()) {
        MOEX_TRY(store_.put(unit, blob.bytes));
        return placed(unit, entry, ExpertEvent::put);
    }

    const bool for_hint = !wanted(unit);
    const std::uint64_t copy = ++num_copies_;
    MOEX_ASSIGN(in_flight, store_.put_held(unit, blob, for_hint,
                                           [this, unit, for_hint, copy, life = life_.watch()] {
                                               if (!life.alive()) return;
                                               if (for_hint) --hint_transfers_;
                                               copied(unit, copy);
                                               // Often several copies end at once. go_on_soon()
                                               // handles them together.
                                               bringing() ? go_on() : go_on_soon();
                                           }));
    if (!in_flight) return placed(unit, entry, ExpertEvent::put);

    ++report_.status.slots.by_gpu;
    entry.copy = copy;
    if (for_hint)
        ++hint_transfers_;
    else
        wait_for(entry, load_);
    return placed(unit, entry, ExpertEvent::copy);
}

void SlotCache::wait_for(Entry& entry, const std::shared_ptr<Load>& load) {
    entry.waiting.push_back(load);
    ++load->transfers;
}

// A copy by the GPU is over. The expert may have been evicted since the copy began, and may be in
// flight again by another copy.
void SlotCache::copied(Unit unit, std::uint64_t copy) {
    const auto found = entries_.find(unit);
    if (found == entries_.end() || found->second.copy != copy) return;
    change(unit, found->second, ExpertEvent::copied);
    end_copy(found->second);
}

// Ends the waits for the expert's copy in flight, if there is one.
void SlotCache::end_copy(Entry& entry) {
    entry.copy = 0;
    for (const std::shared_ptr<Load>& load : entry.waiting)
        if (--load->transfers == 0 && load->placed) count_load(*load);
    entry.waiting.clear();
}

bool SlotCache::is_copying(Unit unit, const Entry& entry) const {
    const bool began = entry.state == ExpertState::copying ||
                       entry.state == ExpertState::copying_in_use;
    return began && store_.in_flight(unit);
}

void SlotCache::count_load(const Load& load) {
    report_.status.slots.load_ms += platform_.now_ms() - load.asked_ms;
    ++report_.status.slots.loads;
}

// Ends the group's wait: each of its experts has a slot, or `status` is the error that prevented
// this.
void SlotCache::finish(Status status) {
    load_->placed = true;
    if (load_->transfers == 0) count_load(*load_);
    load_.reset();
    group_.clear();
    const auto done = std::exchange(done_, nullptr);
    done(std::move(status));
}

bool SlotCache::wanted(Unit unit) const {
    return std::count(group_.begin(), group_.end(), unit) > 0;
}

void SlotCache::fetch(Unit unit, Entry& entry, bool urgent) {
    if (entry.state == ExpertState::fetched) return;
    // The fetch of a hint may be queued behind downloads. If a group needs the expert, the fetch is
    // repeated with priority.
    if (entry.state == ExpertState::fetching && (entry.for_group || !urgent)) return;
    change(unit, entry, ExpertEvent::fetch);
    entry.for_group = urgent;

    platform_.fetch_blob(
        entry.hash, blob_bytes_, urgent,
        [this, life = life_.watch()](std::uint64_t bytes, bool from_network) {
            if (life.alive() && from_network) report_.status.bytes_downloaded += bytes;
        },
        [this, unit, life = life_.watch(), number = fetch_number_](Result<Bytes> blob) {
            if (life.alive() && number == fetch_number_) arrived(unit, std::move(blob));
        });
}

void SlotCache::arrived(Unit unit, Result<Bytes> blob) {
    const auto found = entries_.find(unit);
    // The expert was already released, or this is the second answer to a repeated fetch.
    if (found == entries_.end() || found->second.state != ExpertState::fetching) return go_on();
    Entry& entry = found->second;

    if (!blob.ok()) {
        change(unit, entry, ExpertEvent::fail);
        ++report_.status.errors;
        if (wanted(unit) && bringing())
            finish(Error{ErrorCode::unavailable,
                         text("an expert could not be read again: ", blob.error().message)});
        return go_on();
    }

    if (!wanted(unit)) count_hint(entry);
    change(unit, entry, ExpertEvent::arrive);
    entry.blob = *std::move(blob);
    go_on();
}

// Evicts one expert, the first in eviction order that may be evicted; false if there is none. A
// group may take the slot of any expert that is neither in use, nor the group's own, nor being
// copied. A hint may not take the slot of an expert that the newest hints predict.
bool SlotCache::make_room(bool for_group) {
    for (const auto& [rank, unit] : by_rank_) {
        Entry& entry = entries_.at(unit);
        if (is_used(entry.state) || wanted(unit) || is_copying(unit, entry)) continue;
        if (!for_group && is_predicted(entry)) continue;

        if (entry.prefetched) ++report_.status.slots.wasted;
        entry.prefetched = false;
        if (!for_group) judge_.left(unit);
        drop(Unit(unit), entry);
        return true;
    }
    return false;
}

bool SlotCache::is_predicted(const Entry& entry) const {
    return entry.predicted_in != 0 && entry.predicted_in == num_hints_;
}

// The expert has just got a slot, by `event`, which is `put` or `copy`.
Status SlotCache::placed(Unit unit, Entry& entry, ExpertEvent event) {
    change(unit, entry, event);
    // Groups that use the expert may still run, if its earlier slot was evicted because the memory
    // limit shrank.
    if (entry.num_users > 0) change(unit, entry, ExpertEvent::use);
    entry.last_used = ++clock_;
    rank(unit, entry);
    return runner_ready_ ? runner_.prepare() : Status();
}

void SlotCache::drop(Unit unit, Entry& entry) {
    change(unit, entry, ExpertEvent::evict);
    store_.drop(unit);
    end_copy(entry);
}

// Sorts the expert into the eviction order.
void SlotCache::rank(Unit unit, Entry& entry) {
    if (entry.rank) by_rank_.erase({*entry.rank, unit});
    entry.rank = {options_.policy == EvictionPolicy::lfu ? entry.uses : 0, entry.last_used};
    by_rank_.insert({*entry.rank, unit});
}

void SlotCache::begin_use(std::span<const Unit> units) {
    ++clock_;
    std::shared_ptr<Load> late;  // the group's wait for copies that hints began
    for (const Unit& unit : units) {
        Entry& entry = entries_.at(unit);
        // If the expert is copied for a group, a load waits for this copy already.
        if (is_copying(unit, entry) && entry.waiting.empty()) {
            if (!late) late = std::make_shared<Load>(Load{platform_.now_ms(), 0, true});
            wait_for(entry, late);
        }
        ++entry.num_users;
        ++entry.uses;
        entry.last_used = clock_;
        entry.prefetched = false;
        change(unit, entry, ExpertEvent::use);
        rank(unit, entry);
    }
}

void SlotCache::end_use(std::span<const Unit> units) {
    if (transfers_) {
        const std::uint64_t brought = report_.status.slots.brought;
        transfers_->answered(platform_.now_ms(), std::exchange(brought_, brought) != brought);
    }
    for (const Unit& unit : units) {
        const auto found = entries_.find(unit);
        if (found == entries_.end() || found->second.num_users == 0) continue;
        Entry& entry = found->second;
        if (--entry.num_users > 0 || !is_used(entry.state)) continue;
        change(unit, entry, ExpertEvent::unuse);
        const bool leaves = on_demand() && !wanted(unit) &&
                            options_.policy == EvictionPolicy::cacheless;
        if (leaves) drop(unit, entry);
    }
    // A timer continues later, so that the group's answer is sent first.
    if (bringing() || !fetched_.empty() || !predicted_.empty()) go_on_soon();
}

// ---- The following functions handle hints.

void SlotCache::prefetch(std::span<const Unit> units, std::span<const std::uint16_t> deadlines_ms) {
    if (!on_demand()) return;
    judge_.hinted(units);
    trial_.hinted();
    if (trial_.follows()) return take_hints(units, deadlines_ms);
    report_.status.slots.ignored += units.size();
    take_hints({}, {});
}

void SlotCache::expect(Unit unit) {
    if (!on_demand()) return;
    judge_.certain(unit);
    take_hints({&unit, 1}, {});
}

void SlotCache::take_hints(std::span<const Unit> units,
                           std::span<const std::uint16_t> deadlines_ms) {
    // The newest hint replaces older hints: an expert that only an older hint predicts and that is
    // not in flight yet would arrive too late.
    ++num_hints_;
    predicted_.assign(units.rbegin(), units.rend());
    std::erase_if(predicted_,
                  [this](const Unit& unit) { return !holds(unit) || !judge_.worth(unit, false); });
    for (const Unit& unit : predicted_) entries_.at(unit).predicted_in = num_hints_;
    discard_fetched();

    for (std::size_t i = 0; i < units.size(); ++i) {
        const Unit& unit = units[i];
        const auto found = entries_.find(unit);
        if (found == entries_.end()) continue;
        Entry& entry = found->second;
        entry.hint = num_hints_;
        entry.hinted_ms = platform_.now_ms();
        const bool has_deadline = i < deadlines_ms.size() && deadlines_ms[i] > 0;
        entry.expires_ms = has_deadline ? platform_.now_ms() + deadlines_ms[i] : 0;
        if (!has_slot(entry.state) || !is_predicted(entry)) continue;
        entry.last_used = clock_;
        rank(unit, entry);
    }
    go_on();
}

// Discards fetched blobs that neither the waiting group nor the newest hints ask for.
void SlotCache::discard_fetched() {
    for (auto next = fetched_.begin(); next != fetched_.end();) {
        const Unit unit = *next++;
        Entry& entry = entries_.at(unit);
        if (wanted(unit) || is_predicted(entry)) continue;
        change(unit, entry, ExpertEvent::discard);
        ++report_.status.slots.wasted;
    }
}

void SlotCache::fetches_cancelled() {
    ++fetch_number_;
    for (auto& [unit, entry] : entries_)
        if (entry.state == ExpertState::fetching) change(unit, entry, ExpertEvent::fail);
    predicted_.clear();
    if (bringing()) finish(Error{ErrorCode::cancelled, "downloads were stopped"});
}

}  // namespace moex
