// The experts that lie on the GPU: blobs in slots of a few large
// arenas, no arena larger than one storage binding may be. A layer's experts share
// an arena where one holds them, in whatever order they come: a round asks for
// experts of one layer, and what lies in one arena is computed by one dispatch.
// Owns the arenas' buffers. Experts beyond the budget do not lie here;
// slot_cache.h knows which of them are held all the same.
#pragma once

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

// Where a blob lies.
struct ExpertSlot {
    std::uint32_t arena = 0;
    std::uint32_t blob_word = 0;  // first 32-bit word in the arena
    std::uint64_t transfer = 0;   // that brings it (gpu::Device::await_transfer); 0: none
};

struct ArenaOptions {
    // Experts of a layer. 0: slots are filled in the order in which experts come.
    std::uint32_t layer_units = 0;
    std::uint64_t arena_bytes_max = 1ull << 30;  // larger ones are refused more often
};

class ExpertStore : public UnitStore {
  public:
    // A round names an arena by words of its header, and each has bind
    // groups of its own: together they hold what a card of 140 GB does.
    static constexpr std::uint32_t arenas_max = 160;

    // What any store on this adapter holds at most; less when
    // the size of a blob does not divide that of an arena.
    static std::uint64_t bytes_max(const gpu::AdapterInfo& adapter);

    ExpertStore(gpu::Device& device, std::uint64_t blob_bytes, std::uint64_t budget_bytes,
                ArenaOptions options = {});
    ~ExpertStore() override;
    ExpertStore(const ExpertStore&) = delete;

    // what the budget, the binding limit and arenas_max allow
    std::uint32_t slots_max() const override { return slots_max_; }
    // what they would allow with another budget
    std::uint32_t slots_for(std::uint64_t budget_bytes) const override;
    // Another budget, which has room for what is held. A larger one makes nothing yet. A smaller
    // one gives back arenas, the last first; experts that lie there and stay are copied on the GPU.
    Status resize(std::uint64_t budget_bytes) override;
    // Makes the arenas for `num_units` slots, so that no buffer is
    // created once serving began. Keeps what is there. Grows by half at
    // least, within the budget: small steps would use up the arenas.
    Status reserve(std::uint32_t num_units) override;
    // Uploads a verified blob; no_space when every slot is taken.
    Status put(Unit unit, ByteView blob) override;
    bool is_shared() const override { return device_.is_shared(); }
    Result<bool> put_held(Unit unit, const HeldBlob& blob, bool is_prefetch,
                          std::function<void()> done) override;
    bool in_flight(Unit unit) const override;
    // Where it is on its way, waits for it.
    void drop(Unit unit) override;
    std::optional<ExpertSlot> find(Unit unit) const;
    bool holds(Unit unit) const override { return slots_.contains(unit); }
    std::uint32_t num_units() const override { return static_cast<std::uint32_t>(slots_.size()); }
    std::vector<Unit> units() const override;
    std::vector<Unit> units_from_the_end() const override;
    std::uint64_t bytes_max() const override { return slots_max_ * blob_bytes_; }
    std::uint64_t weights_bytes() const override { return num_units() * blob_bytes_; }
    const std::vector<gpu::BufferId>& arenas() const { return arenas_; }

  private:
    Status shrink_last_arena();
    std::uint32_t arena_of(std::uint32_t slot) const {
        return static_cast<std::uint32_t>(slot / slots_per_arena_);
    }
    Result<std::uint32_t> make_slot(Unit unit, std::uint64_t blob_bytes);
    std::uint32_t take_slot(std::uint16_t layer);
    std::uint32_t choose_home() const;
    std::set<std::uint32_t>::const_iterator first_free(std::uint32_t arena) const;
    bool has_room(std::uint32_t arena) const;

    gpu::Device& device_;
    std::uint64_t blob_bytes_;
    std::uint32_t layer_units_;
    std::uint64_t slots_per_arena_ = 0;
    std::uint32_t slots_max_ = 0;
    std::uint32_t slots_made_ = 0;
    std::vector<gpu::BufferId> arenas_;
    std::vector<std::uint32_t> arena_slots_;  // beside arenas_
    std::set<std::uint32_t> free_;            // slot numbers
    struct Placed {
        std::uint32_t slot = 0;
        std::uint64_t transfer = 0;
    };
    std::map<Unit, Placed> slots_;
    // by layer: the arena where its next expert goes while there is room
    std::map<std::uint16_t, std::uint32_t> homes_;
    LifeGuard life_;
};

}  // namespace moex
