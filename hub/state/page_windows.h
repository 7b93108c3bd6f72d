// The second parts of pages, which have the rows of layers with a window (kv_page_store.h): which
// of them a text needs to go on behind a page, and which stay on disk. Pure.
//   window of 8 tokens, pages of 4: behind page 4 (end_page 5), a window sees the positions from 13
//   on, so that the second parts of pages 3 and 4 are needed
#pragma once

#include <cstdint>

namespace moex {

struct PageWindows {
    std::uint32_t window = 0;  // positions that the largest window sees; 0: pages have one part
    std::uint32_t page_tokens = 0;

    // Returns the first page with a position that a window sees from the end of page `end_page` - 1
    // on.
    std::uint32_t first_seen(std::uint32_t end_page) const {
        const std::uint64_t end = std::uint64_t{end_page} * page_tokens;
        if (end < window) return 0;
        return static_cast<std::uint32_t>((end + 1 - window) / page_tokens);
    }
    // Returns true if a page's second part stays on disk, however long the text becomes: a window
    // that ends at a multiple of four windows looks at it.
    bool is_stop(std::uint32_t page) const {
        constexpr std::uint32_t windows_between = 4;
        const std::uint32_t pages = (window + page_tokens - 1) / page_tokens * windows_between,
                            next = (page / pages + 1) * pages;
        return page >= first_seen(next);
    }
};

}  // namespace moex
