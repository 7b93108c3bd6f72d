// A group in passes: every expert is in one pass, and the experts in slots are in the first pass.
#include "web-worker/slots/group_passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace moex {
namespace {

std::vector<GroupPass> cut(std::uint32_t num_experts, std::uint32_t slots,
                           const std::set<std::uint32_t>& in_slots = {}) {
    return cut_passes(num_experts, slots,
                      [&](std::uint32_t expert) { return in_slots.contains(expert); });
}

TEST(GroupPassesTest, EveryExpertIsInOnePassThatFits) {
    for (const std::uint32_t num_experts : {1u, 2u, 7u, 20u, 128u})
        for (const std::uint32_t slots : {1u, 2u, 3u, 16u, 100u, 127u})
            for (const std::uint32_t there : {0u, 1u, 16u, 90u}) {
                std::set<std::uint32_t> in_slots;
                for (std::uint32_t i = 0; i < std::min({there, slots, num_experts}); ++i)
                    in_slots.insert(num_experts - 1 - i);
                const std::vector<GroupPass> passes = cut(num_experts, slots, in_slots);
                if (passes.empty()) {
                    EXPECT_LE(num_experts, slots);
                    EXPECT_LE(num_experts - in_slots.size(), 2 * pass_experts_min);
                    continue;
                }
                std::set<std::uint32_t> seen;
                for (const GroupPass& pass : passes) {
                    EXPECT_FALSE(pass.empty());
                    EXPECT_LE(pass.size(), slots);
                    EXPECT_TRUE(std::is_sorted(pass.begin(), pass.end()));
                    for (const std::uint32_t expert : pass)
                        EXPECT_TRUE(seen.insert(expert).second) << expert;
                }
                EXPECT_EQ(seen.size(), num_experts);
                EXPECT_EQ(*seen.rbegin(), num_experts - 1);
            }
}

TEST(GroupPassesTest, FirstPassHasExpertsInSlotsAndLeavesRoom) {
    const std::vector<GroupPass> passes = cut(60, 32, {3, 40, 59});
    EXPECT_EQ(passes.front(), (GroupPass{3, 40, 59}));
    for (std::size_t i = 1; i < passes.size(); ++i)
        EXPECT_LE(passes[i - 1].size() + passes[i].size(), 32u) << "two at a time";
}

TEST(GroupPassesTest, FewMissingExpertsAreWaitedForAtOnce) {
    EXPECT_TRUE(cut(8, 40).empty());
    EXPECT_TRUE(cut(2 * pass_experts_min, 40).empty());
    EXPECT_FALSE(cut(2 * pass_experts_min + 1, 40).empty());
    EXPECT_FALSE(cut(8, 7).empty());
}

}  // namespace
}  // namespace moex
