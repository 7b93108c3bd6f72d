// Tests which second parts of pages a window sees, against a search over positions.
#include "hub/state/page_windows.h"

#include <gtest/gtest.h>

namespace moex {
namespace {

// The first page with one of the positions that the token behind page `end_page` - 1 sees: itself,
// and the `window` - 1 positions before it.
std::uint32_t first_seen(const PageWindows& windows, std::uint32_t end_page) {
    const std::uint64_t end = std::uint64_t{end_page} * windows.page_tokens;
    std::uint64_t seen = end;
    while (seen > 0 && end - (seen - 1) < windows.window) --seen;
    return static_cast<std::uint32_t>(seen / windows.page_tokens);
}

TEST(PageWindowsTest, FirstSeenPageIsThatOfASearch) {
    for (const std::uint32_t page_tokens : {1u, 4u, 16u})
        for (std::uint32_t window = 1; window <= 40; ++window) {
            const PageWindows windows{window, page_tokens};
            for (std::uint32_t end_page = 0; end_page < 60; ++end_page)
                EXPECT_EQ(windows.first_seen(end_page), first_seen(windows, end_page))
                    << "window " << window << ", pages of " << page_tokens << ", end " << end_page;
        }
}

// A text with another end goes on from such a stop, so that each stop needs all pages of a window.
TEST(PageWindowsTest, EveryFourthWindowStaysWhole) {
    for (const std::uint32_t page_tokens : {1u, 4u, 16u})
        for (const std::uint32_t window : {1u, 7u, 16u, 40u}) {
            const PageWindows windows{window, page_tokens};
            const std::uint32_t between = (window + page_tokens - 1) / page_tokens * 4;
            for (std::uint32_t stop = between; stop < 6 * between; stop += between)
                for (std::uint32_t page = stop - between; page < stop; ++page)
                    EXPECT_EQ(windows.is_stop(page), page >= first_seen(windows, stop));
        }
}

}  // namespace
}  // namespace moex
