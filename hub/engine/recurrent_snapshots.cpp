#include "hub/engine/recurrent_snapshots.h"

#include <algorithm>
#include <utility>

namespace moex {

RecurrentSnapshots::RecurrentSnapshots(const RecurrentShape& shape, std::uint64_t bytes_max,
                                       std::uint64_t companion_bytes)
    : num_floats_(shape.num_layers * shape.snapshot_floats_of_layer()),
      copies_max_(num_floats_ == 0 ? 0
                                   : bytes_max / (num_floats_ * sizeof(float) + companion_bytes)) {}

const float* RecurrentSnapshots::find(std::uint32_t page) {
    const auto found = by_page_.find(page);
    if (found == by_page_.end()) return nullptr;
    found->second.used = ++uses_;
    return found->second.floats.get();
}

CompanionPtr RecurrentSnapshots::companion(std::uint32_t page) const {
    const auto found = by_page_.find(page);
    return found == by_page_.end() ? nullptr : found->second.companion;
}

void RecurrentSnapshots::keep(std::uint32_t page, const RecurrentState& state,
                              const MakeCompanion& make) {
    const auto make_companion = [&] { return make ? make(state.border()) : nullptr; };
    if (const auto known = by_page_.find(page); known != by_page_.end()) {
        if (!known->second.companion) known->second.companion = make_companion();
        return;
    }
    if (copies_max_ == 0 || !state.can_copy()) return;
    Copy copy;
    if (by_page_.size() < copies_max_) {
        copy.floats = std::unique_ptr<float[]>(new float[num_floats_]);
    } else {
        const auto oldest = std::min_element(
            by_page_.begin(), by_page_.end(),
            [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
        copy.floats = std::move(oldest->second.floats);
        by_page_.erase(oldest);
    }
    state.copy_to({copy.floats.get(), num_floats_});
    copy.companion = make_companion();
    copy.used = ++uses_;
    by_page_.emplace(page, std::move(copy));
}

StateSlotPtr RecurrentSnapshots::find_slot(std::uint32_t page) {
    const auto found = by_page_.find(page);
    if (found == by_page_.end()) return nullptr;
    found->second.used = ++uses_;
    return found->second.slot;
}

void RecurrentSnapshots::keep(std::uint32_t page, const StateSlotPtr& slot,
                              const MakeCompanion& make) {
    Copy& copy = by_page_[page];
    if (!copy.slot) {
        copy.slot = slot;
        copy.used = ++uses_;
    }
    if (!copy.companion && make) copy.companion = make(slot->num_tokens);
}

bool RecurrentSnapshots::drop_oldest_slot() {
    auto oldest = by_page_.end();
    for (auto it = by_page_.begin(); it != by_page_.end(); ++it) {
        if (it->second.slot.use_count() != 1) continue;
        if (oldest == by_page_.end() || it->second.used < oldest->second.used) oldest = it;
    }
    if (oldest == by_page_.end()) return false;
    by_page_.erase(oldest);
    return true;
}

std::uint64_t RecurrentSnapshots::used_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [page, copy] : by_page_) {
        if (copy.floats) bytes += num_floats_ * sizeof(float);
        if (copy.companion) bytes += copy.companion->size_bytes();
    }
    return bytes;
}

void RecurrentSnapshots::drop(std::uint32_t page) { by_page_.erase(page); }

}  // namespace moex
