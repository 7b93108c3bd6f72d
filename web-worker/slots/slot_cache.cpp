#include "web-worker/slots/slot_cache.h"

#include <algorithm>
#include <utility>

namespace moex {
namespace {
constexpr std::size_t hints_at_once = 4;  // on their way
// From memory to slots for hints, a turn of the loop: a call that came meanwhile waits no longer.
constexpr std::uint64_t hint_bytes_a_turn = 2u << 20;
// From memory to slots for hints, beside what is computed. What a group waits for goes before them
// (gpu::TransferKind), but their slots are taken.
constexpr std::uint64_t hint_transfers_at_once = 8;
}  // namespace

// ---- what is held

std::vector<Unit> SlotCache::units() const {
    std::vector<Unit> all;
    for (const auto& [unit, held] : held_) all.push_back(unit);
    return all;
}

std::vector<Unit> SlotCache::units_from_the_end() const {
    std::vector<Unit> all;
    for (const auto& [unit, held] : held_)
        if (!store_.holds(unit)) all.push_back(unit);
    const std::vector<Unit> placed = store_.units_from_the_end();
    all.insert(all.end(), placed.begin(), placed.end());
    return all;
}

Status SlotCache::keep(Unit unit, const Sha256& hash, ByteView blob) {
    if (!holds(unit) && num_units() >= capacity())
        return Error{ErrorCode::no_space, text("all of ", capacity(), " experts are held")};

    ++num_changes_;
    held_[unit].hash = hash;
    if (has_free_slot()) {
        MOEX_TRY(store_.put(unit, blob));
        MOEX_TRY(placed(unit));
    }
    return {};
}

void SlotCache::forget(Unit unit) {
    if (holds(unit)) drop(unit);
    ++num_changes_;
    held_.erase(unit);
    unplaced_.erase(unit);
    std::erase(predicted_, unit);
    if (bringing() && std::count(group_.begin(), group_.end(), unit) > 0)
        finish(Error{ErrorCode::unknown_expert, "released while it was on its way"});
}

Status SlotCache::resize(std::uint64_t budget_bytes) {
    const std::uint32_t slots = store_.slots_for(budget_bytes);
    for (const Unit& unit : store_.units_from_the_end())
        if (store_.num_units() > slots) drop(unit);
    return store_.resize(budget_bytes);
}

UnitTier SlotCache::tier_of(Unit unit) const {
    if (store_.holds(unit)) return UnitTier::slot;
    return platform_.find_blob(held_.at(unit).hash) ? UnitTier::memory : UnitTier::store;
}

// ---- what a group asks for

bool SlotCache::in_slots(std::span<const Unit> units) const {
    return std::all_of(units.begin(), units.end(),
                       [this](const Unit& unit) { return store_.holds(unit); });
}

void SlotCache::count(std::span<const Unit> units) {
    judge_.asked(units, slots());
    trial_.called(platform_.now_ms());
    SlotCounters& counters = report_.status.slots;
    for (const Unit& unit : units) {
        ++counters.asked;
        if (store_.in_flight(unit) || fetching_.contains(unit) || unplaced_.contains(unit)) {
            ++counters.late;
        } else if (store_.holds(unit)) {
            ++counters.resident;
            count_lead(unit);
        }
    }
}

// Of the layer that is asked now, or of the next one: what an older hint named is another token's.
void SlotCache::count_lead(Unit unit) {
    const auto held = held_.find(unit);
    if (held == held_.end()) return;
    const std::uint64_t hint = std::exchange(held->second.hint, 0);
    if (hint == 0 || hint + 1 < num_hints_) return;
    ++report_.status.slots.foreseen;
    report_.status.slots.lead_ms += platform_.now_ms() - held->second.hinted_ms;
}

void SlotCache::bring(std::vector<Unit> units, std::function<void(Status)> done) {
    MOEX_CHECK(!bringing(), "one group's experts are brought at a time");
    MOEX_CHECK(units.size() <= slots(), "a group of more experts than there are slots");
    group_ = std::move(units);
    done_ = std::move(done);
    load_ = std::make_shared<Load>(Load{.asked_ms = platform_.now_ms()});

    for (const Unit& unit : group_)
        if (!store_.holds(unit) && !platform_.find_blob(held_.at(unit).hash)) fetch(unit, true);
    go_on_soon();  // what is here already and had no slot, or all of it since
}

void SlotCache::go_on_soon() {
    if (std::exchange(goes_on_soon_, true)) return;
    platform_.set_timer(0, [this, life = life_.watch()] {
        if (!life.alive()) return;
        goes_on_soon_ = false;
        go_on();
    });
}

// Places what is here, and ends the group's wait when nothing is missing.
void SlotCache::go_on() {
    Status placed = place_what_came();
    if (placed.ok() && bringing()) placed = place_group();
    if (placed.ok() && bringing() && in_slots(group_)) return finish({});
    if (placed.ok()) placed = begin_hints();
    if (placed.ok()) return;

    const auto lost = options_.lost;  // it may end this object
    lost(placed.error());
}

Status SlotCache::place_what_came() {
    for (auto one = unplaced_.begin(); one != unplaced_.end();) {
        const auto at = one++;
        if (!has_free_slot() && !make_room(wanted(at->first))) continue;
        const auto arrived = unplaced_.extract(at);
        const Unit unit = arrived.key();
        if (const HeldBlob kept = platform_.find_blob(held_.at(unit).hash)) {
            MOEX_TRY(place(unit, kept));
        } else {
            MOEX_TRY(store_.put(unit, arrived.mapped()));
            MOEX_TRY(placed(unit));
        }
        ++report_.status.slots.brought;
    }
    return {};
}

// What lies in this machine's memory. The rest is on its way, or asked for now: it may have left
// the memory meanwhile. Where no slot is free, what runs or is on its way there leaves one.
Status SlotCache::place_group() {
    for (const Unit& unit : group_) {
        if (store_.holds(unit)) continue;
        const HeldBlob blob = platform_.find_blob(held_.at(unit).hash);
        if (!blob)
            fetch(unit, true);
        else if (has_free_slot() || make_room(true))
            MOEX_TRY(place_from_memory(unit, blob));
    }
    return {};
}

Status SlotCache::begin_hints() {
    std::uint64_t placed_bytes = 0;
    while (!bringing() && !predicted_.empty() &&
           fetching_.size() + unplaced_.size() < hints_at_once &&
           hint_transfers_ < hint_transfers_at_once) {
        const Unit next = predicted_.back();
        predicted_.pop_back();
        if (!holds(next) || store_.holds(next) || has_expired(next)) continue;
        if (!judge_.worth(next, !has_free_slot())) continue;
        const HeldBlob blob = platform_.find_blob(held_.at(next).hash);
        if (!blob) {
            fetch(next, false);
            continue;
        }

        const bool turn_is_over = placed_bytes >= hint_bytes_a_turn;
        if (turn_is_over || (!has_free_slot() && !make_room(false))) {
            predicted_.push_back(next);
            if (turn_is_over) go_on_soon();  // else when a slot is free
            break;
        }

        MOEX_TRY(place_from_memory(next, blob));
        count_hint(next);
        if (!store_.in_flight(next)) placed_bytes += blob_bytes_;
    }
    return {};
}

// What it was for has been asked for by now, or will not be.
bool SlotCache::has_expired(Unit unit) {
    const double expires_ms = held_.at(unit).expires_ms;
    if (expires_ms == 0 || platform_.now_ms() <= expires_ms) return false;
    ++report_.status.slots.expired;
    return true;
}

void SlotCache::count_hint(Unit unit) {
    ++report_.status.slots.prefetched;
    held_.at(unit).foreseen = true;
}

Status SlotCache::place_from_memory(Unit unit, const HeldBlob& blob) {
    MOEX_TRY(place(unit, blob));
    ++report_.status.slots.brought;
    return {};
}

// Requires a free slot. What asks for it from here on is computed once it is there.
Status SlotCache::place(Unit unit, const HeldBlob& blob) {
    if (!transfers_) transfers_.emplace(!store_.is_shared());
    if (!transfers_->by_gpu()) {
        MOEX_TRY(store_.put(unit, blob.bytes));
        return placed(unit);
    }
    const bool for_hint = !wanted(unit);
    MOEX_ASSIGN(on_its_way,
                store_.put_held(unit, blob, for_hint, [this, unit, for_hint, life = life_.watch()] {
                    if (!life.alive()) return;
                    if (for_hint) --hint_transfers_;
                    is_there(unit);
                    // Several are often over at once.
                    bringing() ? go_on() : go_on_soon();
                }));
    if (on_its_way) ++report_.status.slots.by_gpu;
    if (on_its_way && for_hint) ++hint_transfers_;
    if (on_its_way && !for_hint) wait_for(unit, load_);
    return placed(unit);
}

void SlotCache::wait_for(Unit unit, const std::shared_ptr<Load>& load) {
    waiting_for_[unit].push_back(load);
    ++load->transfers;
}

void SlotCache::is_there(Unit unit) {
    const auto waiting = waiting_for_.extract(unit);
    if (waiting.empty()) return;
    for (const std::shared_ptr<Load>& load : waiting.mapped())
        if (--load->transfers == 0 && load->placed) count_load(*load);
}

void SlotCache::count_load(const Load& load) {
    report_.status.slots.load_ms += platform_.now_ms() - load.asked_ms;
    ++report_.status.slots.loads;
}

// All of it has slots, or will not.
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

void SlotCache::fetch(Unit unit, bool urgent) {
    if (unplaced_.contains(unit)) return;
    const auto [on_its_way, is_new] = fetching_.try_emplace(unit, urgent);
    // A hint's may stand behind downloads: asked for once more, in front of them.
    if (!is_new && (on_its_way->second || !urgent)) return;
    on_its_way->second = urgent;

    platform_.fetch_blob(
        held_.at(unit).hash, blob_bytes_, urgent,
        [this, life = life_.watch()](std::uint64_t bytes, bool from_network) {
            if (life.alive() && from_network) report_.status.bytes_downloaded += bytes;
        },
        [this, unit, life = life_.watch(), number = fetch_number_](Result<Bytes> blob) {
            if (life.alive() && number == fetch_number_) arrived(unit, std::move(blob));
        });
}

void SlotCache::arrived(Unit unit, Result<Bytes> blob) {
    // A second answer, to one that was asked for twice.
    if (fetching_.erase(unit) == 0 || store_.holds(unit)) return go_on();
    if (!holds(unit)) return go_on();  // released meanwhile

    if (!blob.ok()) {
        ++report_.status.errors;
        if (wanted(unit) && bringing())
            finish(Error{ErrorCode::unavailable,
                         text("an expert could not be read again: ", blob.error().message)});
        return go_on();
    }

    if (!wanted(unit)) count_hint(unit);
    unplaced_[unit] = *std::move(blob);
    go_on();
}

// For a group whoever is not in use may go; for a hint, no one that the group or the newest hints
// name. Nobody goes who is still on the way.
bool SlotCache::make_room(bool for_group) {
    for (const auto& [rank, unit] : by_rank_) {
        Held& held = held_.at(unit);
        if (held.in_use > 0 || wanted(unit) || store_.in_flight(unit)) continue;
        if (!for_group && hinted_.contains(unit)) continue;

        if (held.foreseen) ++report_.status.slots.wasted;
        held.foreseen = false;
        if (!for_group) judge_.left(unit);
        drop(Unit(unit));
        return true;
    }
    return false;
}

Status SlotCache::placed(Unit unit) {
    Held& held = held_.at(unit);
    held.last_used = ++clock_;
    rank(unit, held);
    return runner_ready_ ? runner_.prepare() : Status();
}

void SlotCache::drop(Unit unit) {
    if (auto& old = held_.at(unit).rank) by_rank_.erase({*old, unit});
    held_.at(unit).rank.reset();
    store_.drop(unit);
}

// Where it stands among those that lie in slots: who may go first is first.
void SlotCache::rank(Unit unit, Held& held) {
    if (held.rank) by_rank_.erase({*held.rank, unit});
    held.rank = {options_.policy == EvictionPolicy::lfu ? held.uses : 0, held.last_used};
    by_rank_.insert({*held.rank, unit});
}

void SlotCache::begin_use(std::span<const Unit> units) {
    ++clock_;
    // Those that hints brought on their way; a group's own have a load that waits.
    std::shared_ptr<Load> late;
    for (const Unit& unit : units) {
        if (!store_.in_flight(unit) || waiting_for_.contains(unit)) continue;
        if (!late) late = std::make_shared<Load>(Load{platform_.now_ms(), 0, true});
        wait_for(unit, late);
    }
    for (const Unit& unit : units) {
        Held& held = held_.at(unit);
        ++held.in_use;
        ++held.uses;
        held.last_used = clock_;
        held.foreseen = false;
        rank(unit, held);
    }
}

void SlotCache::end_use(std::span<const Unit> units) {
    if (transfers_) {
        const std::uint64_t brought = report_.status.slots.brought;
        transfers_->answered(platform_.now_ms(), std::exchange(brought_, brought) != brought);
    }
    for (const Unit& unit : units) {
        const auto held = held_.find(unit);
        if (held == held_.end() || held->second.in_use == 0) continue;
        const bool was_last = --held->second.in_use == 0;
        const bool goes = was_last && on_demand() && !wanted(unit) &&
                          options_.policy == EvictionPolicy::cacheless;
        if (goes) drop(unit);
    }
    // What ran is answered first.
    if (bringing() || !unplaced_.empty() || !predicted_.empty()) go_on_soon();
}

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
    // The newest word counts: what was foreseen before and is not on its way has come too late.
    predicted_.assign(units.rbegin(), units.rend());
    std::erase_if(predicted_,
                  [this](const Unit& unit) { return !holds(unit) || !judge_.worth(unit, false); });
    hinted_ = std::set<Unit>(predicted_.begin(), predicted_.end());
    report_.status.slots.wasted += std::erase_if(unplaced_, [this](const auto& one) {
        return !wanted(one.first) && !hinted_.contains(one.first);
    });
    ++num_hints_;
    for (std::size_t i = 0; i < units.size(); ++i) {
        const Unit& unit = units[i];
        const auto held = held_.find(unit);
        if (held == held_.end()) continue;
        held->second.hint = num_hints_;
        held->second.hinted_ms = platform_.now_ms();
        const bool has_deadline = i < deadlines_ms.size() && deadlines_ms[i] > 0;
        held->second.expires_ms = has_deadline ? platform_.now_ms() + deadlines_ms[i] : 0;
        if (!store_.holds(unit) || !hinted_.contains(unit)) continue;
        held->second.last_used = clock_;
        rank(unit, held->second);
    }
    go_on();
}

void SlotCache::fetches_cancelled() {
    ++fetch_number_;
    fetching_.clear();
    predicted_.clear();
    if (bringing()) finish(Error{ErrorCode::cancelled, "downloads were stopped"});
}

}  // namespace moex
