// The store of experts in GPU memory: blobs in slots of a few large arenas. An arena is a buffer of
// at most the size of a storage binding. A round asks for experts of one layer, and one dispatch
// computes the experts of a single arena. A layer's experts therefore share an arena if one has
// room for them, in whatever order they arrive. This class owns the arenas' buffers. Experts beyond
// the budget are not in this store; slot_cache.h knows the experts that the worker holds.
//
// A span computes with the same blobs (web-worker/spans). Two copies would take twice the memory,
// so the store uses the span's buffers as further arenas, which it does not own. An expert there
// takes no slot, and the numbers of slots and bytes include it. When the span ends, such a buffer
// becomes an arena of the store as it is: copies to other slots would need their memory before the
// span has freed its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "protocol/life_guard.h"
#include "protocol/messages.h"
#include "web-worker/gpu/device.h"
#include "web-worker/unit_store.h"

namespace moex {

// The place of an expert's blob in GPU memory.
struct ExpertSlot {
    std::uint32_t arena = 0;
    std::uint32_t blob_word = 0;  // first 32-bit word of the blob in the arena
    // Number of the blob's copy in flight (gpu::Device::await_transfer); 0: none.
    std::uint64_t transfer = 0;
};

struct ArenaOptions {
    // Number of experts per layer. 0: slots are filled in the order in which experts arrive.
    std::uint32_t layer_units = 0;
    std::uint64_t arena_bytes_max = 1ull << 30;  // a device often refuses larger buffers
};

class ExpertStore : public UnitStore {
  public:
    // The header of a round has words for each arena, and each arena has bind groups of its own, so
    // the number of arenas is limited. 160 arenas hold the memory of a 140 GB card.
    static constexpr std::uint32_t arenas_max = 160;

    // The most bytes that a store on this adapter holds; fewer if an arena's size is no multiple of
    // a blob's size.
    static std::uint64_t bytes_max(const gpu::AdapterInfo& adapter);

    ExpertStore(gpu::Device& device, std::uint64_t blob_bytes, std::uint64_t budget_bytes,
                ArenaOptions options = {});
    ~ExpertStore() override;
    ExpertStore(const ExpertStore&) = delete;

    // Returns the number of slots that the budget, the binding limit and arenas_max allow. Arenas
    // of spans count among arenas_max.
    std::uint32_t slots_max() const override { return own_slots_max() + num_lent_; }
    // Returns the number of slots that a budget of `budget_bytes` allows.
    std::uint32_t slots_for(std::uint64_t budget_bytes) const override;
    // Changes the budget. Requires that the new budget has room for the experts in the store. A
    // larger budget makes no arena yet. A smaller budget frees arenas, the last one first; experts
    // that stay in the store are copied from there to other arenas on the GPU.
    Status resize(std::uint64_t budget_bytes) override;
    // Makes the arenas for `num_units` slots, so that no buffer is created while the worker serves.
    // The experts in the store stay. The store grows by at least half, within the budget: small
    // steps would use up the number of arenas.
    Status reserve(std::uint32_t num_units) override;
    // Uploads a verified blob to a free slot. Returns no_space if every slot is taken.
    Status put(Unit unit, ByteView blob) override;
    bool is_shared() const override { return device_.is_shared(); }
    Result<bool> put_held(Unit unit, const HeldBlob& blob, bool is_prefetch,
                          std::function<void()> done) override;
    bool in_flight(Unit unit) const override;
    // Waits for the copy of `unit` if it is in flight.
    std::uint32_t lend(const LentUnits& units) override;
    bool is_lent(Unit unit) const override { return lent_arena_of(unit).has_value(); }
    std::vector<Unit> end_lending(std::uint64_t owner, bool is_readable) override;
    void drop(Unit unit) override;
    std::optional<ExpertSlot> find(Unit unit) const;
    bool holds(Unit unit) const override { return slots_.contains(unit); }
    std::uint32_t num_units() const override { return static_cast<std::uint32_t>(slots_.size()); }
    std::vector<Unit> units() const override;
    std::vector<Unit> units_from_the_end() const override;
    std::uint64_t bytes_max() const override { return slots_max() * blob_bytes_; }
    std::uint64_t weights_bytes() const override { return num_units() * blob_bytes_; }
    // Returns the store's own arenas, then those of spans.
    std::vector<gpu::BufferId> arenas() const;

  private:
    std::uint64_t num_arenas_left() const {
        return arenas_max - std::min<std::uint64_t>(arenas_max, arenas_.size() + lent_.size());
    }
    std::uint32_t own_slots_for(std::uint64_t budget_bytes) const;
    std::uint32_t own_slots_max() const { return own_slots_for(budget_bytes_); }
    Status reserve_slots(std::uint32_t num_slots);
    std::optional<std::size_t> lent_arena_of(Unit unit) const;
    gpu::Command copy_to_slot(gpu::BufferId from, std::uint64_t from_bytes,
                              std::uint32_t slot) const;
    Status shrink_last_arena();
    std::uint32_t add_arena(gpu::BufferId buffer, std::uint32_t num_slots);
    std::vector<Unit> homeless_units() const;
    void take_over(const LentUnits& units, const std::vector<Unit>& homeless);

    // Slots are numbered by arena: slot 3 of arena 2 is number 2 * slots_stride + 3. A span's
    // buffer may have more experts than slots_per_arena_.
    static constexpr std::uint32_t slots_stride = 1u << 24;
    static_assert(std::uint64_t{arenas_max} * slots_stride < 1ull << 32, "a slot has 32 bits");
    static std::uint32_t first_slot_of(std::size_t arena) {
        return static_cast<std::uint32_t>(arena * slots_stride);
    }
    static std::uint32_t arena_of(std::uint32_t slot) { return slot / slots_stride; }
    std::uint64_t offset_bytes_of(std::uint32_t slot) const {
        return slot % slots_stride * blob_bytes_;
    }
    Result<std::uint32_t> make_slot(Unit unit, std::uint64_t blob_bytes);
    std::uint32_t take_slot(std::uint16_t layer);
    std::uint32_t choose_home() const;
    std::set<std::uint32_t>::const_iterator first_free(std::uint32_t arena) const;
    bool has_room(std::uint32_t arena) const;

    gpu::Device& device_;
    std::uint64_t blob_bytes_;
    std::uint32_t layer_units_;
    std::uint64_t slots_per_arena_ = 0;  // the most slots of an arena that this class makes
    std::uint64_t budget_bytes_;         // for own slots
    std::uint32_t slots_made_ = 0;
    std::vector<gpu::BufferId> arenas_;
    std::vector<std::uint32_t> arena_slots_;  // number of slots of each arena, by index in arenas_
    std::set<std::uint32_t> free_;            // slot numbers
    struct Placed {
        std::uint32_t slot = 0;
        std::uint64_t transfer = 0;
        bool is_lent = false;  // in an arena of a span: the unit has no slot
    };
    std::map<Unit, Placed> slots_;
    // For each layer: the arena for its next expert, while that arena has room.
    std::map<std::uint16_t, std::uint32_t> homes_;
    std::vector<LentUnits> lent_;  // of spans; a later one has the units of an earlier one
    std::uint32_t num_lent_ = 0;   // units in slots_ that are in such an arena
    LifeGuard life_;
};

}  // namespace moex
