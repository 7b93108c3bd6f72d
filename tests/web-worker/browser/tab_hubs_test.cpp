// Tests which moves to other hubs a tab follows.
#include "web-worker/browser/tab_hubs.h"

#include <gtest/gtest.h>

namespace moex {
namespace {

TEST(TabHubsTest, ATabWithoutABalancerFollowsOneMoveOnly) {
    TabHubs hubs;
    hubs.arrived({"aaaaaaaa", ""});
    EXPECT_TRUE(hubs.move_to("bbbbbbbb"));
    hubs.arrived({"aaaaaaaa", ""});
    EXPECT_FALSE(hubs.move_to("bbbbbbbb"));
    hubs.arrived({"aaaaaaaa", ""});
    EXPECT_FALSE(hubs.move_to("cccccccc")) << "a connection that broke changes nothing";
}

TEST(TabHubsTest, ATabBehindABalancerFollowsEachMove) {
    TabHubs hubs;
    hubs.arrived({"aaaaaaaa", ""});
    EXPECT_TRUE(hubs.move_to("bbbbbbbb"));
    hubs.arrived({"bbbbbbbb", ""});
    EXPECT_TRUE(hubs.move_to("aaaaaaaa"));
    hubs.arrived({"cccccccc", ""});
    EXPECT_TRUE(hubs.move_to("aaaaaaaa")) << "it arrived at a third hub";
}

TEST(TabHubsTest, AnotherHubAtAnyConnectionShowsABalancer) {
    TabHubs hubs;
    hubs.arrived({"aaaaaaaa", ""});
    EXPECT_TRUE(hubs.move_to("bbbbbbbb"));
    hubs.arrived({"aaaaaaaa", ""});
    EXPECT_FALSE(hubs.move_to("bbbbbbbb"));
    hubs.arrived({"bbbbbbbb", ""});
    EXPECT_TRUE(hubs.move_to("aaaaaaaa"));
}

const HubNeed nothing_held{.units = 10, .missing = 10};
const HubNeed all_held{.units = 10};

TEST(TabHubsTest, ATabJoinsAHubThatLacksClearlyMore) {
    TabHubs hubs;
    const HubPlace here{"aaaaaaaa", "", all_held}, poor{"bbbbbbbb", "https://b", nothing_held};
    hubs.arrived(here, {{"cccccccc", "https://c", all_held}, poor});
    EXPECT_EQ(hubs.better({}), poor);
    hubs.arrived({"aaaaaaaa", "", nothing_held}, {poor});
    EXPECT_FALSE(hubs.better({})) << "both lack as much";
    hubs.arrived(here, {});
    EXPECT_FALSE(hubs.better({}));
}

TEST(TabHubsTest, ATabWhoseHubStopsAsksForTheNeediestOther) {
    TabHubs hubs;
    EXPECT_FALSE(hubs.after_stop({}));
    const HubPlace poor{"bbbbbbbb", "https://b", nothing_held};
    hubs.arrived({"aaaaaaaa", ""}, {{"cccccccc", "https://c", all_held}, poor});
    EXPECT_EQ(hubs.after_stop({}), poor);
    EXPECT_TRUE(hubs.move_to("cccccccc"));
    EXPECT_FALSE(hubs.after_stop({})) << "the move that the tab follows goes on";
    hubs.arrived({"aaaaaaaa", ""}, {poor});
    EXPECT_FALSE(hubs.after_stop({})) << "there is no balancer";
}

}  // namespace
}  // namespace moex
