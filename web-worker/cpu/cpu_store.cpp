#include "web-worker/cpu/cpu_store.h"

#include <algorithm>
#include <cstring>

namespace moex {
namespace {

// Size of an arena: large, so that arenas consist of whole huge pages and need few page table
// entries.
constexpr std::uint64_t arena_bytes = 64ull << 20;

}  // namespace

CpuStore::CpuStore(const ExpertShape& shape, WorkerArithmetic arithmetic,
                   std::uint64_t budget_bytes)
    : shape_(shape),
      arithmetic_(arithmetic),
      layout_(expert_blob_layout(shape)),
      up_(expert_panels(shape).gate_up),
      down_(expert_panels(shape).down),
      slot_bytes_(layout_.size_bytes),
      slots_per_arena_(
          static_cast<std::uint32_t>(std::max<std::uint64_t>(1, arena_bytes / slot_bytes_))) {
    MOEX_CHECK(up_.size_bytes() + down_.size_bytes() <=
                   (shape.has_bias ? layout_.gate_up_bias.offset_bytes : slot_bytes_),
               "panels take more room than a blob's matrices");
    slots_max_ = slots_for(budget_bytes);
}

std::uint32_t CpuStore::slots_for(std::uint64_t budget_bytes) const {
    constexpr std::uint64_t slots_limit = 1u << 24;
    return static_cast<std::uint32_t>(std::min(slots_limit, budget_bytes / slot_bytes_));
}

std::byte* CpuStore::at(std::uint32_t slot) const {
    return arenas_[slot / slots_per_arena_].memory.data() + slot % slots_per_arena_ * slot_bytes_;
}

Status CpuStore::add_arena(std::uint32_t num_slots) {
    MOEX_ASSIGN(memory, AlignedBuffer::allocate(num_slots * slot_bytes_));
    arenas_.push_back({std::move(memory), num_slots});
    return {};
}

Status CpuStore::reserve(std::uint32_t num_units) {
    const std::uint32_t wanted = std::min(num_units, slots_max_);
    while (slots_made_ < wanted) {
        // If the last arena is smaller than a full one, replace it by a larger one.
        const bool grow = !arenas_.empty() && arenas_.back().num_slots < slots_per_arena_;
        const std::uint32_t first = grow ? slots_made_ - arenas_.back().num_slots : slots_made_;
        const std::uint32_t num_slots = std::min(slots_per_arena_, slots_max_ - first);

        MOEX_TRY(add_arena(num_slots));
        if (grow) {
            Arena& old = arenas_[arenas_.size() - 2];
            std::memcpy(arenas_.back().memory.data(), old.memory.data(),
                        old.num_slots * slot_bytes_);
            std::swap(old, arenas_.back());
            arenas_.pop_back();
        }
        for (; slots_made_ < first + num_slots; ++slots_made_) free_.insert(slots_made_);
    }
    return {};
}

// Moves experts in slots beyond the new end to free slots before it. Then frees the arenas beyond
// the new end. The arena that contains the new end is replaced by a smaller one.
Status CpuStore::resize(std::uint64_t budget_bytes) {
    slots_max_ = slots_for(budget_bytes);
    MOEX_CHECK(num_units() <= slots_max_,
               text(num_units(), " experts are held, the new budget has ", slots_max_, " slots"));
    if (slots_made_ <= slots_max_) return {};

    for (auto& [unit, slot] : slots_) {
        if (slot < slots_max_) continue;
        const std::uint32_t to = *free_.begin();
        free_.erase(free_.begin());
        std::memcpy(at(to), at(slot), slot_bytes_);
        slot = to;
    }
    free_.erase(free_.lower_bound(slots_max_), free_.end());

    const std::uint32_t kept = slots_max_ % slots_per_arena_;
    const std::size_t whole = slots_max_ / slots_per_arena_;
    Arena cut;
    if (kept > 0) {
        MOEX_ASSIGN(memory, AlignedBuffer::allocate(kept * slot_bytes_));
        std::memcpy(memory.data(), arenas_[whole].memory.data(), kept * slot_bytes_);
        cut = {std::move(memory), kept};
    }
    arenas_.resize(whole);
    if (kept > 0) arenas_.push_back(std::move(cut));
    slots_made_ = slots_max_;
    return {};
}

Status CpuStore::put(Unit unit, ByteView blob) {
    if (slots_.contains(unit)) return {};
    MOEX_ASSIGN(view, view_expert_blob(blob, shape_, shape_.codes));
    if (free_.empty()) MOEX_TRY(reserve(slots_made_ + 1));
    if (free_.empty())
        return Error{ErrorCode::no_space,
                     text("every slot of the budget is taken: ", slots_made_, " experts")};

    const std::uint32_t slot = *free_.begin();
    std::byte* to = at(slot);
    if (arithmetic_ == WorkerArithmetic::int8) {
        const ExpertMatrices matrices = expert_matrices(view);
        pack_int4(to, up_, matrices.gate_up, 0, up_.num_panels());
        pack_int4(to + up_.size_bytes(), down_, matrices.down, 0, down_.num_panels());
        for (const BlobSection& bias : {layout_.gate_up_bias, layout_.down_bias})
            std::memcpy(to + bias.offset_bytes, blob.data() + bias.offset_bytes, bias.size_bytes);
    } else {
        std::memcpy(to, blob.data(), blob.size());
    }
    free_.erase(free_.begin());
    slots_[unit] = slot;
    return {};
}

void CpuStore::drop(Unit unit) {
    const auto found = slots_.find(unit);
    if (found == slots_.end()) return;
    free_.insert(found->second);
    slots_.erase(found);
}

Result<const std::byte*> CpuStore::find(Unit unit) const {
    const auto found = slots_.find(unit);
    if (found == slots_.end())
        return Error{ErrorCode::unknown_expert,
                     text("layer ", unit.layer, " expert ", unit.expert, " is not held here")};
    return static_cast<const std::byte*>(at(found->second));
}

ExpertExtras CpuStore::extras_of(const std::byte* slot) const {
    if (!shape_.has_bias) return {.clamp = shape_.clamp};
    const auto floats = [slot](const BlobSection& section) {
        return reinterpret_cast<const float*>(slot + section.offset_bytes);
    };
    return {floats(layout_.gate_up_bias), floats(layout_.down_bias), shape_.clamp};
}

Result<ExactExpert> CpuStore::exact(Unit unit, std::uint32_t first, std::uint32_t count) const {
    MOEX_ASSIGN(blob, find(unit));
    const ByteView bytes(blob, static_cast<std::size_t>(slot_bytes_));
    MOEX_ASSIGN(view, view_expert_blob(bytes, shape_, shape_.codes));
    const ExpertMatrices matrices = expert_matrices(view);
    return ExactExpert{first, count, matrices.gate_up, matrices.down, extras_of(blob)};
}

// A slot contains the panels of the matrix `up`, then those of the matrix `down`.
Result<PackedExpert> CpuStore::packed(Unit unit, std::uint32_t first, std::uint32_t count) const {
    MOEX_ASSIGN(panels, find(unit));
    PackedExpert expert{first, count, up_, down_, extras_of(panels)};
    expert.gate_up.data = panels;
    expert.down.data = panels + up_.size_bytes();
    return expert;
}

std::vector<Unit> CpuStore::units() const {
    std::vector<Unit> all;
    for (const auto& [unit, slot] : slots_) all.push_back(unit);
    return all;
}

std::vector<Unit> CpuStore::units_from_the_end() const {
    std::vector<Unit> all = units();
    std::sort(all.begin(), all.end(),
              [this](Unit a, Unit b) { return slots_.at(a) > slots_.at(b); });
    return all;
}

}  // namespace moex
