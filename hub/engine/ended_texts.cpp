#include "hub/engine/ended_texts.h"

#include <set>

namespace moex {

void EndedTexts::keep(std::uint64_t id, std::uint32_t num_pages,
                      std::span<const std::uint32_t> pages) {
    kept_.emplace(++num_ends_, Kept{id, num_pages});
    for (const std::uint32_t page : pages) end_of_page_[page] = num_ends_;
    // An end that no page names is never found again.
    if (kept_.size() <= 2 * end_of_page_.size()) return;
    const std::set<std::uint64_t> named(end_of_page_.begin(), end_of_page_.end());
    std::erase_if(kept_, [&](const auto& one) { return !named.contains(one.first); });
}

std::optional<std::uint64_t> EndedTexts::take(std::span<const std::uint32_t> pages) {
    if (!is_on() || pages.empty()) return std::nullopt;
    const auto found = kept_.find(end_of_page_[pages.back()]);
    if (found == kept_.end() || 2 * pages.size() < found->second.num_pages) return std::nullopt;
    const std::uint64_t id = found->second.id;
    kept_.erase(found);
    return id;
}

}  // namespace moex
