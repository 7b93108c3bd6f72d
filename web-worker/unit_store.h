// The interface of a store of experts for one model, in slots of equal size. The slot cache fills
// the store. Implementations: expert_store.h on a GPU; cpu/cpu_store.h in memory, for the
// processor.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "protocol/messages.h"
#include "web-worker/gpu/device.h"
#include "web-worker/held_blob.h"

namespace moex {

// Experts of one layer in a buffer that a span owns, one blob behind the other.
//   first {5, 16}, num_units 8: the experts 16 to 23 of layer 5
struct LentUnits {
    std::uint64_t owner = 0;  // number of the load of the span
    Unit first;
    std::uint32_t num_units = 0;
    gpu::BufferId buffer;
    // Makes the store the owner of the buffer, which the span would destroy.
    std::function<void()> give_up;

    bool contains(Unit unit) const {
        return unit.layer == first.layer && unit.expert >= first.expert &&
               unit.expert - first.expert < num_units;
    }
};

class UnitStore {
  public:
    virtual ~UnitStore() = default;

    // Returns the number of slots that the budget and the device allow.
    virtual std::uint32_t slots_max() const = 0;
    // Returns the number of slots that a budget of `budget_bytes` allows.
    virtual std::uint32_t slots_for(std::uint64_t budget_bytes) const = 0;
    // Changes the budget. Requires that the new budget has room for the experts in the store. A
    // larger budget allocates no memory yet; a smaller one frees some.
    virtual Status resize(std::uint64_t budget_bytes) = 0;
    // Allocates memory for `num_units` slots, so that none is allocated while the worker serves.
    // The experts in the store stay.
    virtual Status reserve(std::uint32_t num_units) = 0;
    // Copies a verified blob to a free slot; returns no_space if every slot is taken.
    virtual Status put(Unit unit, ByteView blob) = 0;
    // Does the same as put(), for a blob in memory that the store may read itself while kernels
    // run. Returns true: the copy is in flight, and `done` is called later, unless this object is
    // destroyed first. Returns false: the copy is over. Copies for prefetches let the other copies
    // go first.
    virtual Result<bool> put_held(Unit unit, const HeldBlob& blob,
                                  [[maybe_unused]] bool is_prefetch,
                                  [[maybe_unused]] std::function<void()> done) {
        MOEX_TRY(put(unit, blob.bytes));
        return false;
    }
    // Guesses whether other processes compute on the GPU of this store.
    virtual bool is_shared() const { return false; }
    // Returns true while the copy of `unit` is in flight. A group that uses `unit` is computed
    // after the copy.
    virtual bool in_flight([[maybe_unused]] Unit unit) const { return false; }
    // From this call on the store computes with these experts in the buffer of a span, so that they
    // take memory once: experts that have a slot give it back, and those that come later take none.
    // Returns how many of these experts had a slot: their memory is that of this span from now on.
    // If the device has no place for a further buffer, they keep their slots. A buffer may leave
    // place for fewer slots (slots_max). Only a store on a GPU lends.
    virtual std::uint32_t lend([[maybe_unused]] const LentUnits& units) { return 0; }
    // Returns true if the unit needs no slot, because a span has it.
    virtual bool is_lent([[maybe_unused]] Unit unit) const { return false; }
    // Called before `owner` frees its buffers. If they are still readable, the store takes over
    // each buffer with experts that it uses, so that these take memory once here, too. It copies
    // experts to slots if its budget has no room for all of their buffer. Returns the others, which
    // are dropped.
    virtual std::vector<Unit> end_lending([[maybe_unused]] std::uint64_t owner,
                                          [[maybe_unused]] bool is_readable) {
        return {};
    }
    virtual void drop(Unit unit) = 0;
    virtual bool holds(Unit unit) const = 0;
    virtual std::uint32_t num_units() const = 0;
    virtual std::vector<Unit> units() const = 0;
    // All units in the store, ordered by descending slot number.
    virtual std::vector<Unit> units_from_the_end() const = 0;
    virtual std::uint64_t bytes_max() const = 0;
    virtual std::uint64_t weights_bytes() const = 0;
};

}  // namespace moex
