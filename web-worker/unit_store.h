// The experts that a worker holds for one model, in slots of one size; what the loader fills.
// On a GPU: expert_store.h. In memory, for the processor: cpu/cpu_store.h.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "protocol/messages.h"
#include "web-worker/held_blob.h"

namespace moex {

class UnitStore {
  public:
    virtual ~UnitStore() = default;

    // what the budget and the device allow
    virtual std::uint32_t slots_max() const = 0;
    // what they would allow with another budget
    virtual std::uint32_t slots_for(std::uint64_t budget_bytes) const = 0;
    // Another budget, which has room for what is held. A larger one takes no memory yet; a smaller
    // one gives some back.
    virtual Status resize(std::uint64_t budget_bytes) = 0;
    // Memory for `num_units` slots, so that none is taken once serving began. Keeps what is there.
    virtual Status reserve(std::uint32_t num_units) = 0;
    // Takes over a verified blob; no_space when every slot is taken.
    virtual Status put(Unit unit, ByteView blob) = 0;
    // As put(), of a blob that the store may read where it lies, beside what is computed. True: it
    // is on its way, and `done` is called later, unless this ends before. False: it is there. Those
    // that are only foreseen let the others go before them.
    virtual Result<bool> put_held(Unit unit, const HeldBlob& blob,
                                  [[maybe_unused]] bool is_prefetch,
                                  [[maybe_unused]] std::function<void()> done) {
        MOEX_TRY(put(unit, blob.bytes));
        return false;
    }
    // Whether others seem to compute on the GPU that holds it: a guess.
    virtual bool is_shared() const { return false; }
    // Held, and on its way: what asks for it is computed once it is there.
    virtual bool in_flight([[maybe_unused]] Unit unit) const { return false; }
    virtual void drop(Unit unit) = 0;
    virtual bool holds(Unit unit) const = 0;
    virtual std::uint32_t num_units() const = 0;
    virtual std::vector<Unit> units() const = 0;
    virtual std::vector<Unit> units_from_the_end() const = 0;  // the one in the last slot first
    virtual std::uint64_t bytes_max() const = 0;
    virtual std::uint64_t weights_bytes() const = 0;
};

}  // namespace moex
