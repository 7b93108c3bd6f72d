// Stores the experts that the processor computes, in memory, in the form that the store's
// arithmetic needs. Exact arithmetic uses blobs as they are; int8 uses panels
// (hub/engine/kernels/integer.h), which take as many bytes as the matrices of the blob. Biases have
// the same place in both. The slots are in arenas, which are allocated and freed with the budget.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "hub/engine/kernels/expert_round.h"
#include "web-worker/unit_store.h"

namespace moex {

class CpuStore : public UnitStore {
  public:
    CpuStore(const ExpertShape& shape, WorkerArithmetic arithmetic, std::uint64_t budget_bytes);

    std::uint32_t slots_max() const override { return slots_max_; }
    std::uint32_t slots_for(std::uint64_t budget_bytes) const override;
    Status resize(std::uint64_t budget_bytes) override;
    Status reserve(std::uint32_t num_units) override;
    Status put(Unit unit, ByteView blob) override;
    void drop(Unit unit) override;
    bool holds(Unit unit) const override { return slots_.contains(unit); }
    std::uint32_t num_units() const override { return static_cast<std::uint32_t>(slots_.size()); }
    std::vector<Unit> units() const override;
    std::vector<Unit> units_from_the_end() const override;
    std::uint64_t bytes_max() const override { return slots_max_ * slot_bytes_; }
    std::uint64_t weights_bytes() const override { return num_units() * slot_bytes_; }

    const ExpertShape& shape() const { return shape_; }
    WorkerArithmetic arithmetic() const { return arithmetic_; }
    // Returns the expert, to be used for the rows `first` to `first + count` of a round, valid
    // until the next put(), drop() or resize(); unknown_expert if it is not in the store. Call the
    // method of the store's arithmetic.
    Result<ExactExpert> exact(Unit unit, std::uint32_t first, std::uint32_t count) const;
    Result<PackedExpert> packed(Unit unit, std::uint32_t first, std::uint32_t count) const;

  private:
    struct Arena {
        AlignedBuffer memory;
        std::uint32_t num_slots = 0;
    };
    std::byte* at(std::uint32_t slot) const;
    Result<const std::byte*> find(Unit unit) const;
    ExpertExtras extras_of(const std::byte* slot) const;
    Status add_arena(std::uint32_t num_slots);

    ExpertShape shape_;
    WorkerArithmetic arithmetic_;
    ExpertBlobLayout layout_;
    PackedMatrix up_, down_;
    std::uint64_t slot_bytes_;
    std::uint32_t slots_per_arena_;
    std::uint32_t slots_max_ = 0, slots_made_ = 0;
    std::vector<Arena> arenas_;  // all arenas except the last have full size
    std::set<std::uint32_t> free_;
    std::map<Unit, std::uint32_t> slots_;
};

}  // namespace moex
