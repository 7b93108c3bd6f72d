#include "hub/engine/recurrent_snapshots.h"

#include <algorithm>
#include <utility>

namespace moex {

RecurrentSnapshots::RecurrentSnapshots(const RecurrentShape& shape, std::uint64_t bytes_max)
    : num_floats_(shape.num_layers * shape.snapshot_floats_of_layer()),
      copies_max_(num_floats_ == 0 ? 0 : bytes_max / (num_floats_ * sizeof(float))) {}

const float* RecurrentSnapshots::find(std::uint32_t page) {
    const auto found = by_page_.find(page);
    if (found == by_page_.end()) return nullptr;
    found->second.used = ++uses_;
    return found->second.floats.get();
}

void RecurrentSnapshots::keep(std::uint32_t page, const RecurrentState& state) {
    if (copies_max_ == 0 || has(page) || !state.can_copy()) return;
    Copy copy;
    if (by_page_.size() < copies_max_) {
        copy.floats = std::make_unique_for_overwrite<float[]>(num_floats_);
    } else {
        const auto oldest = std::ranges::min_element(
            by_page_, {}, [](const auto& one) { return one.second.used; });
        copy.floats = std::move(oldest->second.floats);
        by_page_.erase(oldest);
    }
    state.copy_to({copy.floats.get(), num_floats_});
    copy.used = ++uses_;
    by_page_.emplace(page, std::move(copy));
}

void RecurrentSnapshots::drop(std::uint32_t page) { by_page_.erase(page); }

}  // namespace moex
