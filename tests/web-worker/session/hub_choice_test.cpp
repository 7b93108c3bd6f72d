// Tests the order in which a worker tries the hubs of a fleet.
#include "web-worker/session/hub_choice.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace moex {
namespace {

HubOption hub(std::uint32_t missing, std::optional<double> rtt_ms = {}, std::uint32_t streams = 0,
              std::uint32_t thin = 0) {
    return {
        .need = {.units = 100, .missing = missing, .thin = thin, .workers = 1, .streams = streams},
        .rtt_ms = rtt_ms};
}
std::vector<std::size_t> order(std::initializer_list<HubOption> hubs) {
    return rank_hubs(std::vector(hubs), {});
}
using Order = std::vector<std::size_t>;

TEST(HubChoiceTest, LackIsTheShareOfMissingCopies) {
    EXPECT_EQ((HubNeed{.units = 10, .missing = 2, .thin = 4}).lack(), 0.4);
    EXPECT_EQ((HubNeed{.units = 10, .missing = 10}).lack(), 1);
    EXPECT_EQ((HubNeed{.workers = 3}).lack(), 0) << "nothing is known";
}

TEST(HubChoiceTest, NeedDecidesBeforeRoundTripAndLoad) {
    EXPECT_EQ(order({hub(0, 1), hub(100, 400, 90), hub(50, 1)}), (Order{1, 2, 0}));
    EXPECT_EQ(order({hub(0), hub(1, 400)}), (Order{1, 0})) << "one unit without a holder";
    EXPECT_EQ(order({hub(0), hub(0, {}, 0, 100)}), (Order{1, 0})) << "single copies";
}

TEST(HubChoiceTest, RoundTripDecidesAmongLikeNeedsAndLoadAfterIt) {
    EXPECT_EQ(order({hub(80), hub(95, 90), hub(90, 9)}), (Order{2, 1, 0}));
    EXPECT_EQ(order({hub(0, 9, 20), hub(0, 8, 2)}), (Order{1, 0}));
    EXPECT_EQ(order({hub(0, 0.1, 20), hub(0, 1.9, 2)}), (Order{1, 0})) << "within a step";
}

TEST(HubChoiceTest, EqualHubsAreSpread) {
    std::minstd_rand random(7);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::set<std::size_t> first;
    const std::vector hubs(4, hub(0, 3));
    for (int i = 0; i < 64; ++i)
        first.insert(rank_hubs(hubs, [&] { return uniform(random); }).front());
    EXPECT_EQ(first.size(), 4u);
}

TEST(HubChoiceTest, AHubIsLeftOnlyForOneThatIsClearlyBetter) {
    EXPECT_TRUE(is_clearly_better(hub(25), hub(0)));
    EXPECT_FALSE(is_clearly_better(hub(24), hub(0)));
    EXPECT_TRUE(is_clearly_better(hub(0, 4), hub(0, 20)));
    EXPECT_FALSE(is_clearly_better(hub(0, 1), hub(0, 4))) << "less than 5 ms nearer";
    EXPECT_FALSE(is_clearly_better(hub(0, 50), hub(0, 90))) << "less than twice as near";
    EXPECT_FALSE(is_clearly_better(hub(0, 4), hub(25, 200))) << "this hub lacks more";
    EXPECT_FALSE(is_clearly_better(hub(0), hub(0, 200)));
    EXPECT_FALSE(is_clearly_better(hub(0, {}, 0), hub(0, {}, 99))) << "load alone moves none";
}

}  // namespace
}  // namespace moex
