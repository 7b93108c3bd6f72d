// Tests which hub of a fleet a native worker joins next.
#include "web-worker/native/hub_list.h"

#include <gtest/gtest.h>

#include <map>

namespace moex::native {
namespace {

HubList list_of(std::initializer_list<const char*> urls) {
    std::vector<HubUrl> given;
    for (const char* url : urls) given.push_back(parse_hub_url(url).value());
    return HubList(std::move(given));
}
std::string next(const HubList& hubs) {
    return hubs.current().authority() + hubs.current().worker_target();
}

constexpr bool was_open = true, was_not_open = false, stops = true, breaks = false;

TEST(HubListTest, AHubThatCannotBeReachedComesLast) {
    HubList hubs = list_of({"ws://a:1", "ws://b:1", "ws://c:1"});
    EXPECT_EQ(next(hubs), "a:1/worker");
    hubs.ended(was_not_open, breaks);
    EXPECT_EQ(next(hubs), "b:1/worker");
    hubs.ended(was_not_open, breaks);
    hubs.ended(was_not_open, breaks);
    EXPECT_EQ(next(hubs), "a:1/worker");
}

TEST(HubListTest, ABrokenConnectionIsTriedOnceMoreAtTheSameHub) {
    HubList hubs = list_of({"ws://a:1", "ws://b:1"});
    hubs.welcomed({"aaaaaaaa", ""}, {});
    hubs.ended(was_open, breaks);
    EXPECT_EQ(next(hubs), "a:1/worker?hub=aaaaaaaa");
    hubs.ended(was_not_open, breaks);
    EXPECT_EQ(next(hubs), "b:1/worker");
}

TEST(HubListTest, AHubThatStopsIsLeftAtOnce) {
    HubList hubs = list_of({"ws://a:1"});
    hubs.ended(was_open, stops);
    EXPECT_EQ(next(hubs), "a:1/worker") << "there is no other";

    hubs.welcomed({"aaaaaaaa", ""}, {{"bbbbbbbb", "http://b:2/moex"}, {"cccccccc", "http://c:3"}});
    EXPECT_EQ(next(hubs), "a:1/worker?hub=aaaaaaaa");
    hubs.ended(was_open, stops);
    EXPECT_EQ(next(hubs), "b:2/moex/worker?hub=bbbbbbbb");
    hubs.ended(was_not_open, breaks);
    EXPECT_EQ(next(hubs), "c:3/worker?hub=cccccccc");
    hubs.ended(was_not_open, breaks);
    EXPECT_EQ(next(hubs), "a:1/worker") << "what the operator named stays known";
}

TEST(HubListTest, HubsOfOneOriginDifferByTheirIds) {
    HubList hubs = list_of({"wss://hub.example"});
    hubs.welcomed({"aaaaaaaa", ""}, {{"bbbbbbbb", "https://hub.example"}});
    hubs.ended(was_open, stops);
    EXPECT_EQ(next(hubs), "hub.example:443/worker?hub=bbbbbbbb");
    hubs.ended(was_not_open, breaks);
    EXPECT_EQ(next(hubs), "hub.example:443/worker") << "any hub that the balancer chooses";
}

TEST(HubListTest, AHubWithAnotherKeyEndsAWorkerWithoutOthers) {
    HubList hubs = list_of({"ws://a:1"});
    EXPECT_TRUE(hubs.refused());
    hubs.welcomed({"aaaaaaaa", ""}, {});
    EXPECT_TRUE(hubs.refused()) << "the list has this hub with and without its id";
}

TEST(HubListTest, AllHubsAreTriedBeforeOtherKeysEndAWorker) {
    HubList hubs = list_of({"ws://a:1"});
    hubs.welcomed({"aaaaaaaa", ""}, {{"bbbbbbbb", "http://b:2"}});
    EXPECT_FALSE(hubs.refused());
    EXPECT_EQ(next(hubs), "b:2/worker?hub=bbbbbbbb");
    hubs.ended(was_not_open, breaks);
    EXPECT_EQ(next(hubs), "a:1/worker");
    EXPECT_FALSE(hubs.refused()) << "b may answer the next time";
    EXPECT_EQ(next(hubs), "a:1/worker?hub=aaaaaaaa");
    EXPECT_FALSE(hubs.refused()) << "one address counts once";
    EXPECT_EQ(next(hubs), "b:2/worker?hub=bbbbbbbb");
    EXPECT_TRUE(hubs.refused());
}

TEST(HubListTest, AMoveGoesToTheNamedHubAndBackIfItIsNotThere) {
    HubList hubs = list_of({"ws://a:1"});
    hubs.welcomed({"aaaaaaaa", ""}, {{"bbbbbbbb", "http://b:2"}});
    EXPECT_TRUE(hubs.move_to({"cccccccc", "http://c:3"}));
    EXPECT_EQ(next(hubs), "c:3/worker?hub=cccccccc");
    hubs.ended(was_not_open, breaks);
    EXPECT_EQ(next(hubs), "a:1/worker?hub=aaaaaaaa");
    EXPECT_TRUE(hubs.move_to({"bbbbbbbb", "http://b:2"}));
    EXPECT_EQ(next(hubs), "b:2/worker?hub=bbbbbbbb");
}

TEST(HubListTest, AnAddressThatIsUnreadOrInTheClearIsLeftOut) {
    HubList hubs = list_of({"wss://a:1"});
    hubs.welcomed({"aaaaaaaa", ""}, {{"bbbbbbbb", "http://b:2"}, {"cccccccc", "nowhere"}});
    hubs.ended(was_open, stops);
    EXPECT_EQ(next(hubs), "a:1/worker");
    EXPECT_FALSE(hubs.move_to({"bbbbbbbb", "http://b:2"}));
    EXPECT_FALSE(hubs.move_to({"cccccccc", ""}));
    EXPECT_TRUE(hubs.move_to({"dddddddd", "https://d:4"}));
}

bool may_move(const char* from, const std::string& to) {
    HubList hubs = list_of({from});
    return hubs.move_to({"bbbbbbbb", "http://" + to + ":2"});
}

TEST(HubListTest, AHubElsewhereNamesNoAddressOfTheWorkersNetwork) {
    for (const char* address :
         {"127.0.0.1", "127.1", "0x7f.1", "2130706433", "0.0.0.0", "localhost", "[::1]", "[::]",
          "[::ffff:127.0.0.1]", "10.0.0.5", "172.16.0.1", "172.31.255.255", "192.168.1.1",
          "100.64.0.1", "[fd00::1]", "169.254.169.254", "[fe80::1]"}) {
        EXPECT_FALSE(may_move("ws://hub.example:1", address)) << address;
        EXPECT_FALSE(may_move("ws://8.8.8.8:1", address)) << address;
    }
    for (const char* address : {"8.8.4.4", "172.32.0.1", "100.128.0.1", "11.0.0.1", "[2001:db8::1]",
                                "b.example", "10.example"})
        EXPECT_TRUE(may_move("ws://hub.example:1", address)) << address;

    HubList hubs = list_of({"ws://hub.example:1"});
    hubs.welcomed({"aaaaaaaa", ""}, {{"bbbbbbbb", "http://192.168.1.1:80"}});
    hubs.ended(was_open, stops);
    EXPECT_EQ(next(hubs), "hub.example:1/worker");
}

TEST(HubListTest, AHubNamesAddressesOfItsOwnKind) {
    EXPECT_TRUE(may_move("ws://127.0.0.1:1", "localhost"));
    EXPECT_TRUE(may_move("ws://localhost:1", "127.0.0.1"));
    EXPECT_TRUE(may_move("ws://10.0.0.5:1", "192.168.1.1"));
    EXPECT_TRUE(may_move("ws://10.0.0.5:1", "8.8.8.8"));
    EXPECT_TRUE(may_move("ws://169.254.1.1:1", "[fe80::2]"));
    EXPECT_FALSE(may_move("ws://10.0.0.5:1", "127.0.0.1"));
    EXPECT_FALSE(may_move("ws://10.0.0.5:1", "169.254.169.254"));
    EXPECT_FALSE(may_move("ws://127.0.0.1:1", "10.0.0.5"));
}

const HubNeed nothing_held{.units = 10, .missing = 10};
const HubNeed all_held{.units = 10};

TEST(HubListTest, TheNeediestHubIsTriedFirst) {
    HubList hubs = list_of({"ws://a:1"});
    hubs.welcomed({"aaaaaaaa", "", all_held},
                  {{"bbbbbbbb", "http://b:2", all_held}, {"cccccccc", "http://c:3", nothing_held}});
    EXPECT_EQ(next(hubs), "a:1/worker?hub=aaaaaaaa");
    EXPECT_EQ(hubs.better()->id, "cccccccc");
    hubs.ended(was_open, stops);
    EXPECT_EQ(next(hubs), "c:3/worker?hub=cccccccc");
    EXPECT_FALSE(hubs.better()) << "the worker is not at the hub that listed them";
    hubs.ended(was_not_open, breaks);
    EXPECT_EQ(next(hubs), "b:2/worker?hub=bbbbbbbb");
}

TEST(HubListTest, ANearHubComesBeforeAFarOne) {
    HubList hubs = list_of({"ws://a:1"});
    const std::vector<HubPlace> others{
        {"bbbbbbbb", "http://b:2"}, {"cccccccc", "http://c:3"}, {"dddddddd", "http://c:3"}};
    hubs.welcomed({"aaaaaaaa", ""}, others);
    const std::vector<HubUrl> measured = hubs.to_measure(0);
    ASSERT_EQ(measured.size(), 3u) << "one address is measured once";
    EXPECT_EQ(measured[0].host, "a");
    EXPECT_TRUE(hubs.to_measure(0).empty()) << "they are being measured";
    for (const HubUrl& hub : measured)
        hubs.measured(hub, hub.host == "a"   ? std::optional(80.0)
                           : hub.host == "c" ? std::optional(8.0)
                                             : std::nullopt);
    EXPECT_TRUE(hubs.to_measure(59'000).empty());
    EXPECT_EQ(hubs.better()->id, "cccccccc");
    hubs.ended(was_open, stops);
    EXPECT_EQ(next(hubs), "c:3/worker?hub=cccccccc");

    // While the worker tries one after the other, a late measurement does not change the order.
    hubs.ended(was_not_open, breaks);
    hubs.measured(parse_hub_url("http://b:2").value(), 1);
    EXPECT_EQ(next(hubs), "c:3/worker?hub=dddddddd");

    hubs.welcomed({"dddddddd", ""}, {{"bbbbbbbb", "http://b:2"}, {"eeeeeeee", "http://e:5"}});
    const std::vector<HubUrl> fresh = hubs.to_measure(59'000);
    ASSERT_EQ(fresh.size(), 1u);
    EXPECT_EQ(fresh[0].host, "e");
}

// A hub can send HUBS as often as it likes, each time with other addresses.
TEST(HubListTest, RoundTripsAreMeasuredAtABoundedRate) {
    HubList hubs = list_of({"ws://a:1"});
    std::map<std::string, double> last_ms;
    std::size_t num_measured = 0;
    const double minute_ms = 60'000, all_ms = 10 * minute_ms;
    for (double now_ms = 0; now_ms < all_ms; now_ms += 100) {
        std::vector<HubPlace> others;
        const int first = now_ms < all_ms / 2 ? 0 : static_cast<int>(now_ms);
        for (int i = 0; i < 64; ++i)
            others.push_back({text("hub", i), text("http://host", first + i, ":80")});
        hubs.welcomed({"aaaaaaaa", ""}, others);
        const std::vector<HubUrl> chosen = hubs.to_measure(now_ms);
        EXPECT_LE(chosen.size(), HubList::measured_at_once);
        num_measured += chosen.size();
        for (const HubUrl& hub : chosen) {
            const auto [known, is_new] = last_ms.try_emplace(hub.authority(), now_ms);
            EXPECT_TRUE(is_new || now_ms - std::exchange(known->second, now_ms) >= minute_ms);
            hubs.measured(hub, std::nullopt);
        }
    }
    EXPECT_EQ(num_measured, 10 * HubList::measured_per_minute);
}

TEST(HubListTest, AHubThatDidNotAnswerIsAskedAgainAfterAMinute) {
    HubList hubs = list_of({"ws://a:1"});
    hubs.welcomed({"aaaaaaaa", ""}, {{"bbbbbbbb", "http://b:2"}});
    ASSERT_EQ(hubs.to_measure(0).size(), 2u);
    hubs.measured(parse_hub_url("http://a:1").value(), 3);
    EXPECT_TRUE(hubs.to_measure(59'999).empty());
    const std::vector<HubUrl> again = hubs.to_measure(60'000);
    ASSERT_EQ(again.size(), 1u) << "the other round trip is known";
    EXPECT_EQ(again[0].host, "b");
}

}  // namespace
}  // namespace moex::native
