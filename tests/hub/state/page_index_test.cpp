// Tests the index of pages on disk against a plain model, and the order of eviction.
#include "hub/state/page_index.h"

#include <algorithm>
#include <set>

#include <rapidcheck.h>

#include <gtest/gtest.h>

namespace moex {
namespace {

PageName name_of(int number) {
    PageName name{};
    name[0] = static_cast<std::byte>(number & 255);
    name[1] = static_cast<std::byte>(number >> 8);
    return name;
}

PageEntry entry_of(const char* client, int parent, std::uint64_t bytes = 10) {
    return {.folder = client, .parent = name_of(parent), .bytes = bytes, .written_s = 0};
}

TEST(PageIndexTest, EndOfTheOldestTextOfTheLargestClientLeavesFirst) {
    PageIndex index;
    for (const int page : {1, 2, 3}) index.add(name_of(page), entry_of("large", page - 1));
    index.add(name_of(11), entry_of("large", 0));
    index.add(name_of(12), entry_of("large", 11));
    index.add(name_of(21), entry_of("small", 0));
    for (const int page : {1, 2, 3}) index.use(name_of(page));

    for (const int expected : {12, 11, 3, 2}) {
        ASSERT_EQ(index.next_to_evict(), name_of(expected));
        index.remove(name_of(expected), {});
    }
    EXPECT_EQ(index.bytes(), 20u);
}

TEST(PageIndexTest, SecondPartLeavesOnlyWhereTheTextGoesOnInOneWay) {
    PageIndex index;
    for (const int page : {1, 2, 3, 4}) {
        index.add(name_of(page), entry_of("ada", page - 1));
        index.set_written(name_of(page), 10, 4);
    }
    const auto passed = index.drop_window_before(name_of(4), 2);
    ASSERT_TRUE(passed);
    EXPECT_EQ(passed->first, name_of(2));
    EXPECT_EQ(passed->second.window_bytes, 4u);
    EXPECT_EQ(index.find(name_of(2))->bytes, 6u);
    EXPECT_EQ(index.bytes(), 36u);
    EXPECT_FALSE(index.drop_window_before(name_of(4), 2));  // it has left already
    EXPECT_FALSE(index.drop_window_before(name_of(4), 4));  // before the text

    index.add(name_of(14), entry_of("ada", 3));  // another text goes on behind page 3
    EXPECT_FALSE(index.drop_window_before(name_of(4), 1));
    EXPECT_FALSE(index.drop_window_before(name_of(4), 3));
    EXPECT_TRUE(index.drop_window_before(name_of(4), 0));
    EXPECT_EQ(index.bytes(), 42u);
}

TEST(PageIndexTest, IndexActsLikeASetOfPathsUnderAnyHistory) {
    EXPECT_TRUE(rc::check([] {
        PageIndex index;
        std::map<int, int> parents;  // the model: page -> its parent
        int last = 0;
        for (int left = *rc::gen::inRange(1, 60); left > 0; --left) {
            std::vector<int> known{0};
            for (const auto& [page, parent] : parents) known.push_back(page);
            const int page = known[*rc::gen::inRange<std::size_t>(0, known.size())];
            switch (*rc::gen::inRange(0, 4)) {
                case 0:
                case 1:
                    parents[++last] = page;
                    index.add(name_of(last), entry_of(page % 2 == 0 ? "a" : "b", page, 7));
                    break;
                case 2:
                    if (page != 0) index.use(name_of(page));
                    break;
                case 3: {
                    std::set<int> gone{page};
                    for (const auto& [one, parent] : parents)
                        if (gone.contains(parent) && parent != 0) gone.insert(one);
                    if (page == 0) gone.clear();
                    std::set<PageName> removed;
                    index.remove(name_of(page), [&](const PageName& name, const PageEntry&) {
                        RC_ASSERT(removed.insert(name).second);
                    });
                    RC_ASSERT(removed.size() == gone.size());
                    for (const int one : gone) parents.erase(one);
                    break;
                }
            }
            RC_ASSERT(index.size() == parents.size());
            RC_ASSERT(index.bytes() == 7 * parents.size());
            for (int one = 1; one <= last; ++one)
                RC_ASSERT(index.holds(name_of(one)) == parents.contains(one));
            const auto next = index.next_to_evict();
            RC_ASSERT(next.has_value() == !parents.empty());
            if (next)  // nothing is below the page that leaves
                for (const auto& [one, parent] : parents) RC_ASSERT(name_of(parent) != *next);
        }
    }));
}

}  // namespace
}  // namespace moex
