// Tests which moves to other hubs a tab follows.
#include "web-worker/browser/tab_hubs.h"

#include <gtest/gtest.h>

namespace moex {
namespace {

TEST(TabHubsTest, ATabWithoutABalancerFollowsOneMoveOnly) {
    TabHubs hubs;
    hubs.arrived("aaaaaaaa");
    EXPECT_TRUE(hubs.move_to("bbbbbbbb"));
    hubs.arrived("aaaaaaaa");
    EXPECT_FALSE(hubs.move_to("bbbbbbbb"));
    hubs.arrived("aaaaaaaa");
    EXPECT_FALSE(hubs.move_to("cccccccc")) << "a connection that broke changes nothing";
}

TEST(TabHubsTest, ATabBehindABalancerFollowsEachMove) {
    TabHubs hubs;
    hubs.arrived("aaaaaaaa");
    EXPECT_TRUE(hubs.move_to("bbbbbbbb"));
    hubs.arrived("bbbbbbbb");
    EXPECT_TRUE(hubs.move_to("aaaaaaaa"));
    hubs.arrived("cccccccc");
    EXPECT_TRUE(hubs.move_to("aaaaaaaa")) << "it arrived at a third hub";
}

TEST(TabHubsTest, AnotherHubAtAnyConnectionShowsABalancer) {
    TabHubs hubs;
    hubs.arrived("aaaaaaaa");
    EXPECT_TRUE(hubs.move_to("bbbbbbbb"));
    hubs.arrived("aaaaaaaa");
    EXPECT_FALSE(hubs.move_to("bbbbbbbb"));
    hubs.arrived("bbbbbbbb");
    EXPECT_TRUE(hubs.move_to("aaaaaaaa"));
}

}  // namespace
}  // namespace moex
