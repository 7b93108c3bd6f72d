#include "web-worker/expert_store.h"

#include <algorithm>

namespace moex {
namespace {
// The store grows by at least this many slots, since the number of arenas is limited and experts
// may arrive a few at a time when others are released.
constexpr std::uint32_t grow_slots = 16;

std::uint64_t arena_bytes_max(const gpu::AdapterInfo& adapter, const ArenaOptions& options) {
    return std::min({adapter.max_binding_bytes, adapter.max_buffer_bytes, options.arena_bytes_max});
}
}  // namespace

std::uint64_t ExpertStore::bytes_max(const gpu::AdapterInfo& adapter) {
    return arenas_max * arena_bytes_max(adapter, {});
}

ExpertStore::ExpertStore(gpu::Device& device, std::uint64_t blob_bytes, std::uint64_t budget_bytes,
                         ArenaOptions options)
    : device_(device),
      blob_bytes_(blob_bytes),
      layer_units_(options.layer_units),
      budget_bytes_(budget_bytes) {
    slots_per_arena_ = std::min<std::uint64_t>(
        arena_bytes_max(device.adapter(), options) / blob_bytes, slots_stride);
    if (layer_units_ > 0 && slots_per_arena_ > layer_units_)
        slots_per_arena_ -= slots_per_arena_ % layer_units_;
}

ExpertStore::~ExpertStore() {
    for (const gpu::BufferId arena : arenas_) device_.destroy_buffer(arena);
}

std::uint32_t ExpertStore::slots_for(std::uint64_t budget_bytes) const {
    return own_slots_for(budget_bytes) + num_lent_;
}

std::uint32_t ExpertStore::own_slots_for(std::uint64_t budget_bytes) const {
    return static_cast<std::uint32_t>(
        std::min(budget_bytes / blob_bytes_, slots_made_ + num_arenas_left() * slots_per_arena_));
}

Status ExpertStore::resize(std::uint64_t budget_bytes) {
    budget_bytes_ = budget_bytes;
    MOEX_CHECK(num_units() <= slots_max(),
               text(num_units(), " experts are held, the new budget has ", slots_max(), " slots"));
    while (slots_made_ > own_slots_max()) MOEX_TRY(shrink_last_arena());
    return {};
}

// Frees the last arena. If the budget allows a part of it, a smaller arena replaces it. The experts
// in the old arena move to the smaller one and to free slots of the other arenas.
Status ExpertStore::shrink_last_arena() {
    const std::size_t last = arenas_.size() - 1;
    const gpu::BufferId old = arenas_[last];
    const std::uint32_t first = first_slot_of(last);
    const std::uint32_t elsewhere = slots_made_ - arena_slots_[last];
    const std::uint32_t kept = own_slots_max() - std::min(own_slots_max(), elsewhere);

    free_.erase(free_.lower_bound(first), free_.end());
    gpu::BufferId smaller;
    if (kept > 0) {
        MOEX_ASSIGN(
            made, device_.create_buffer(kept * blob_bytes_, gpu::BufferUsage::storage, "experts"));
        smaller = made;
        for (std::uint32_t i = 0; i < kept; ++i) free_.insert(first + i);
    }

    std::vector<gpu::Command> moves;
    for (auto& [unit, placed] : slots_) {
        auto& [slot, transfer, is_lent] = placed;
        if (is_lent || slot < first) continue;
        device_.await_transfer(transfer);
        const std::uint32_t to = take_slot(unit.layer);
        gpu::Command move = copy_to_slot(old, (slot - first) * blob_bytes_, to);
        if (to >= first) move.target = smaller;
        moves.push_back(move);
        slot = to;
    }
    if (!moves.empty()) device_.submit(moves);
    device_.destroy_buffer(old);

    slots_made_ = elsewhere + kept;
    arenas_.pop_back();
    arena_slots_.pop_back();
    if (kept > 0) {
        arenas_.push_back(smaller);
        arena_slots_.push_back(kept);
    }
    return {};
}

gpu::Command ExpertStore::copy_to_slot(gpu::BufferId from, std::uint64_t from_bytes,
                                       std::uint32_t slot) const {
    gpu::Command copy;
    copy.kind = gpu::Command::Kind::copy;
    copy.source = from;
    copy.source_offset_bytes = from_bytes;
    copy.target = arenas_[arena_of(slot)];
    copy.target_offset_bytes = offset_bytes_of(slot);
    copy.size_bytes = blob_bytes_;
    return copy;
}

Status ExpertStore::reserve(std::uint32_t num_units) {
    return reserve_slots(num_units - std::min(num_units, num_lent_));
}

Status ExpertStore::reserve_slots(std::uint32_t num_slots) {
    const std::uint32_t slots_max = own_slots_max(), wanted = std::min(num_slots, slots_max);
    while (slots_made_ < wanted) {
        // Make the arena so large that the arenas that may still be made can hold the remaining
        // budget.
        const std::uint64_t left = (num_arenas_left() - 1) * slots_per_arena_,
                            rest = slots_max - slots_made_;
        const std::uint64_t grown = std::max<std::uint64_t>(
            {wanted - slots_made_, slots_made_ / 2, grow_slots, rest > left ? rest - left : 0});
        const auto slots = static_cast<std::uint32_t>(
            std::min<std::uint64_t>({slots_per_arena_, rest, grown}));

        MOEX_ASSIGN(arena, device_.create_buffer(slots * blob_bytes_, gpu::BufferUsage::storage,
                                                 "experts"));
        add_arena(arena, slots);
    }
    return {};
}

// Adds an arena with free slots. Returns its first slot.
std::uint32_t ExpertStore::add_arena(gpu::BufferId buffer, std::uint32_t num_slots) {
    const std::uint32_t first = first_slot_of(arenas_.size());
    arenas_.push_back(buffer);
    arena_slots_.push_back(num_slots);
    for (std::uint32_t i = 0; i < num_slots; ++i) free_.insert(free_.end(), first + i);
    slots_made_ += num_slots;
    return first;
}

Status ExpertStore::put(Unit unit, ByteView blob) {
    if (slots_.contains(unit)) return {};
    if (is_lent(unit)) {
        slots_[unit] = {.is_lent = true};
        ++num_lent_;
        return {};
    }
    MOEX_ASSIGN(slot, make_slot(unit, blob.size()));
    device_.write_buffer(arenas_[arena_of(slot)], offset_bytes_of(slot), blob);
    return {};
}

Result<bool> ExpertStore::put_held(Unit unit, const HeldBlob& blob, bool is_prefetch,
                                   std::function<void()> done) {
    if (slots_.contains(unit)) return false;
    if (is_lent(unit)) {
        MOEX_TRY(put(unit, blob.bytes));
        return false;
    }
    MOEX_ASSIGN(slot, make_slot(unit, blob.bytes.size()));
    const gpu::BufferId arena = arenas_[arena_of(slot)];
    const std::uint64_t offset_bytes = offset_bytes_of(slot);
    const std::uint64_t transfer = device_.transfer(
        arena, offset_bytes, blob.bytes,
        is_prefetch ? gpu::TransferKind::prefetch : gpu::TransferKind::awaited,
        [holds = blob.holds, done = std::move(done), life = life_.watch()] {
            if (life.alive()) done();
        });
    if (transfer == 0) device_.write_buffer(arena, offset_bytes, blob.bytes);
    slots_[unit].transfer = transfer;
    return transfer != 0;
}

bool ExpertStore::in_flight(Unit unit) const {
    const auto found = slots_.find(unit);
    return found != slots_.end() && !device_.transferred(found->second.transfer);
}

// Takes a free slot for the expert `unit`.
Result<std::uint32_t> ExpertStore::make_slot(Unit unit, std::uint64_t blob_bytes) {
    MOEX_CHECK(blob_bytes == blob_bytes_,
               text("blob of ", blob_bytes, " bytes, slots have ", blob_bytes_));
    if (free_.empty()) {
        MOEX_TRY(reserve_slots(slots_made_ + grow_slots));
        if (free_.empty())
            return Error{ErrorCode::no_space,
                         text("every slot of the budget is taken: ", slots_made_, " experts")};
    }
    const std::uint32_t slot = take_slot(unit.layer);
    slots_[unit] = {slot};
    return slot;
}

std::set<std::uint32_t>::const_iterator ExpertStore::first_free(std::uint32_t arena) const {
    return free_.lower_bound(first_slot_of(arena));
}

bool ExpertStore::has_room(std::uint32_t arena) const {
    const auto slot = first_free(arena);
    return slot != free_.end() && arena_of(*slot) == arena;
}

// Takes the lowest free slot in the layer's home arena. Chooses another home if that arena is full.
// Requires a free slot.
std::uint32_t ExpertStore::take_slot(std::uint16_t layer) {
    if (layer_units_ == 0) {
        const std::uint32_t lowest = *free_.begin();
        free_.erase(free_.begin());
        return lowest;
    }

    const auto found = homes_.find(layer);
    const bool at_home = found != homes_.end() && has_room(found->second);
    const std::uint32_t home = at_home ? found->second : choose_home();
    homes_[layer] = home;

    const auto slot = first_free(home);
    const std::uint32_t taken = *slot;
    free_.erase(slot);
    return taken;
}

// Returns the fullest arena that still has room for another whole layer beside the layers that use
// it as their home; otherwise the arena with the most room.
std::uint32_t ExpertStore::choose_home() const {
    std::vector<std::int64_t> room(arena_slots_.begin(), arena_slots_.end());
    for (const auto& [layer, home] : homes_)
        if (home < room.size()) room[home] -= layer_units_;

    std::optional<std::uint32_t> best;
    for (std::uint32_t arena = 0; arena < room.size(); ++arena) {
        if (!has_room(arena)) continue;
        const bool fits = room[arena] >= layer_units_,
                   best_fits = best && room[*best] >= layer_units_;
        const bool better = !best || (fits && !best_fits) ||
                            (fits == best_fits &&
                             (fits ? room[arena] < room[*best] : room[arena] > room[*best]));
        if (better) best = arena;
    }
    return *best;
}

void ExpertStore::drop(Unit unit) {
    const auto found = slots_.find(unit);
    if (found == slots_.end()) return;
    (void)device_.transferred(found->second.transfer, true);
    if (found->second.is_lent)
        --num_lent_;
    else
        free_.insert(found->second.slot);
    slots_.erase(found);
}

std::vector<gpu::BufferId> ExpertStore::arenas() const {
    std::vector<gpu::BufferId> all = arenas_;
    for (const LentUnits& one : lent_) all.push_back(one.buffer);
    return all;
}

// Returns the index of the newest arena of a span that has the unit.
std::optional<std::size_t> ExpertStore::lent_arena_of(Unit unit) const {
    for (std::size_t i = lent_.size(); i > 0; --i)
        if (lent_[i - 1].contains(unit)) return i - 1;
    return std::nullopt;
}

std::uint32_t ExpertStore::lend(const LentUnits& units) {
    const bool is_taken = num_arenas_left() > 0;
    if (is_taken) lent_.push_back(units);
    std::uint32_t num_held = 0;
    for (auto& [unit, placed] : slots_) {
        if (!units.contains(unit) || placed.is_lent) continue;
        ++num_held;
        if (!is_taken) continue;
        (void)device_.transferred(placed.transfer, true);
        free_.insert(placed.slot);
        placed = {.is_lent = true};
        ++num_lent_;
    }
    return num_held;
}

// Returns the experts that a span had and that no span has now.
std::vector<Unit> ExpertStore::homeless_units() const {
    std::vector<Unit> all;
    for (const auto& [unit, placed] : slots_)
        if (placed.is_lent && !is_lent(unit)) all.push_back(unit);
    return all;
}

// Makes the buffer of a span that ends an arena, if it has some of these experts and the budget has
// room for all of it.
void ExpertStore::take_over(const LentUnits& units, const std::vector<Unit>& homeless) {
    const bool is_used = std::any_of(homeless.begin(), homeless.end(),
                                     [&](Unit unit) { return units.contains(unit); });
    const std::uint64_t slots = std::uint64_t{slots_made_} + units.num_units;
    if (!is_used || slots * blob_bytes_ > budget_bytes_) return;

    units.give_up();
    const std::uint32_t first = add_arena(units.buffer, units.num_units);
    for (const Unit unit : homeless) {
        if (!units.contains(unit)) continue;
        const std::uint32_t slot = first + (unit.expert - units.first.expert);
        free_.erase(slot);
        slots_[unit] = {.slot = slot};
        --num_lent_;
    }
    if (layer_units_ > 0) homes_[units.first.layer] = arena_of(first);
}

std::vector<Unit> ExpertStore::end_lending(std::uint64_t owner, bool is_readable) {
    std::vector<LentUnits> ended, others;
    std::partition_copy(lent_.begin(), lent_.end(), std::back_inserter(ended),
                        std::back_inserter(others),
                        [&](const LentUnits& one) { return one.owner == owner; });
    lent_ = std::move(others);
    if (is_readable)
        for (const LentUnits& one : ended) take_over(one, homeless_units());

    // Copy the experts of buffers that exceed the budget.
    const std::vector<Unit> homeless = homeless_units();
    if (is_readable) (void)reserve_slots(num_units() - num_lent_ + homeless.size());
    std::vector<gpu::Command> copies;
    std::vector<Unit> lost;
    for (const Unit unit : homeless) {
        drop(unit);
        const auto from = std::find_if(ended.begin(), ended.end(),
                                       [&](const LentUnits& one) { return one.contains(unit); });
        const auto slot = is_readable && num_units() < slots_max()
                              ? make_slot(unit, blob_bytes_)
                              : Result<std::uint32_t>(Error{ErrorCode::no_space, "no slot"});
        if (slot.ok())
            copies.push_back(copy_to_slot(from->buffer,
                                          (unit.expert - from->first.expert) * blob_bytes_, *slot));
        else
            lost.push_back(unit);
    }
    if (!copies.empty()) device_.submit(copies);
    return lost;
}

std::optional<ExpertSlot> ExpertStore::find(Unit unit) const {
    const auto found = slots_.find(unit);
    if (found == slots_.end()) return std::nullopt;
    const auto [slot, transfer, is_lent] = found->second;
    const auto words = static_cast<std::uint32_t>(blob_bytes_ / 4);
    if (is_lent) {
        const std::size_t arena = *lent_arena_of(unit);
        return ExpertSlot{static_cast<std::uint32_t>(arenas_.size() + arena),
                          (unit.expert - lent_[arena].first.expert) * words, 0};
    }
    return ExpertSlot{arena_of(slot), slot % slots_stride * words, transfer};
}

std::vector<Unit> ExpertStore::units() const {
    std::vector<Unit> all;
    for (const auto& [unit, placed] : slots_) all.push_back(unit);
    return all;
}

std::vector<Unit> ExpertStore::units_from_the_end() const {
    std::vector<Unit> all = units();
    // Lent units are last: they take no slot.
    std::sort(all.begin(), all.end(), [this](Unit a, Unit b) {
        const Placed &of_a = slots_.at(a), &of_b = slots_.at(b);
        return std::pair(of_b.is_lent, of_a.slot) > std::pair(of_a.is_lent, of_b.slot);
    });
    return all;
}

}  // namespace moex
