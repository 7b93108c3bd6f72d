#include "web-worker/decoder/working_set.h"

#include <algorithm>

#include "protocol/check.h"
#include "protocol/text.h"

namespace moex {

WorkingSet::WorkingSet(std::uint32_t num_pages, std::uint32_t num_slots, std::uint32_t num_staging)
    : pages_(num_pages),
      num_slots_(num_slots),
      num_resident_(num_slots - num_staging),
      is_taken_(num_resident_) {
    MOEX_CHECK(num_staging > 0 && num_staging < num_slots,
               text(num_staging, " of ", num_slots, " slots stage pages"));
}

std::optional<std::uint32_t> WorkingSet::slot_of(std::uint32_t page) const {
    return pages_[page].slot;
}

void WorkingSet::shorten(std::uint32_t num_pages) {
    for (std::size_t page = num_pages; page < pages_.size(); ++page) {
        if (pages_[page].slot) is_taken_[*pages_[page].slot] = 0;
        pages_[page] = {};
    }
}

std::optional<std::uint32_t> WorkingSet::free_slot() const {
    const auto found = std::find(is_taken_.begin(), is_taken_.end(), 0);
    if (found == is_taken_.end()) return std::nullopt;
    return static_cast<std::uint32_t>(found - is_taken_.begin());
}

std::optional<WorkingSet::Move> WorkingSet::next_move(std::uint32_t first,
                                                      std::uint32_t end) const {
    for (std::uint32_t page = first; page < end; ++page) {
        if (pages_[page].slot) continue;
        if (const auto slot = free_slot()) return Move{page, *slot, false};
        for (std::uint32_t other = 0; other < pages_.size(); ++other)
            if (pages_[other].slot && (other < first || other >= end))
                return Move{other, *pages_[other].slot, true};
        MOEX_CHECK(false, text("pages ", first, " to ", end, " exceed the working set"));
    }
    return std::nullopt;
}

void WorkingSet::moved(const Move& move) {
    is_taken_[move.slot] = move.is_eviction ? 0 : 1;
    if (move.is_eviction) {
        pages_[move.page].slot.reset();
        pages_[move.page].is_stored = true;
    } else {
        pages_[move.page].slot = move.slot;
    }
}

std::optional<std::uint32_t> WorkingSet::take_slot(std::uint32_t page) {
    if (pages_[page].slot) return pages_[page].slot;
    const auto slot = free_slot();
    if (slot) moved({page, *slot, false});
    return slot;
}

void WorkingSet::write(std::uint32_t first, std::uint32_t end) {
    for (std::uint32_t page = first; page < end; ++page) pages_[page].is_stored = false;
}

std::optional<WorkingSet::Move> WorkingSet::next_return(std::uint32_t num_pages) const {
    const auto slot = free_slot();
    if (!slot) return std::nullopt;
    for (std::uint32_t page = num_pages; page-- > 0;)
        if (!pages_[page].slot && pages_[page].is_stored) return Move{page, *slot, false};
    return std::nullopt;
}

std::vector<std::uint32_t> WorkingSet::table(std::uint32_t num_pages) const {
    std::vector<std::uint32_t> slots;
    for (std::uint32_t page = 0; page < num_pages; ++page)
        slots.push_back(pages_[page].slot.value_or(absent));
    return slots;
}

std::vector<std::uint32_t> WorkingSet::evicted(std::uint32_t first, std::uint32_t num_pages) const {
    std::vector<std::uint32_t> out;
    for (std::uint32_t page = first; page < num_pages; ++page)
        if (!pages_[page].slot) out.push_back(page);
    return out;
}

}  // namespace moex
