// Tests of the choice between this device and the hub: examples of each way, the thresholds where
// nothing is measured, and properties over random facts.
#include "hub/route/route.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "protocol/text.h"

namespace moex {
namespace {

// A small model in a browser beside a hub that computes ten times as fast, on a local network.
RouteFacts near_hub() {
    return {.prompt_tokens = 2000,
            .answer_tokens = 100,
            .context_tokens = 4096,
            .hub_context_tokens = 32768,
            .words = WordsMayGo::to_hub,
            .hub_answers = true,
            .hub_hands_off = true,
            .here = {400, 40},
            .hub = {4000, 60},
            .bytes_per_s = 125e6 / 10,
            .round_trip_s = 0.020,
            .f16_bytes_per_token = 8192,
            .u8_bytes_per_token = 4352};
}
double seconds(const RouteChoice& choice, AnswerPlace place) {
    return choice.seconds[static_cast<std::size_t>(place)];
}

TEST(RouteTest, TimesAreThoseOfTheHeadersExample) {
    const RouteChoice choice = route(near_hub());
    EXPECT_TRUE(choice.is_measured);
    EXPECT_NEAR(seconds(choice, AnswerPlace::here), 7.5, 0.01);
    EXPECT_NEAR(seconds(choice, AnswerPlace::hub), 2.19, 0.01);
    EXPECT_TRUE(choice.as_u8) << "16-bit rows take 1.3 s, and the hub computes them in 0.5 s";
    EXPECT_NEAR(seconds(choice, AnswerPlace::handed), 0.02 + 0.696 + 0.04 + 2.5, 0.01);
    EXPECT_EQ(choice.place, AnswerPlace::hub);
}

TEST(RouteTest, AFastDeviceWithASlowPromptTakesPages) {
    RouteFacts facts = near_hub();
    facts.here.answer_tokens_per_s = 200;
    facts.answer_tokens = 400;
    EXPECT_EQ(route(facts).place, AnswerPlace::handed);
    facts.held_tokens = 1990;
    EXPECT_EQ(route(facts).place, AnswerPlace::here) << "the prompt is here already";
    facts.held_tokens = 0;
    facts.bytes_per_s = 1e6;
    facts.here.prompt_tokens_per_s = 4000;
    EXPECT_EQ(route(facts).place, AnswerPlace::here) << "pages would take longer than the prompt";
}

TEST(RouteTest, ThresholdsDecideBeforeAnythingIsMeasured) {
    RouteFacts facts = near_hub();
    facts.here = facts.hub = {};
    facts.bytes_per_s = 0;
    const auto place = [&] {
        const RouteChoice choice = route(facts);
        EXPECT_FALSE(choice.is_measured);
        EXPECT_EQ(choice.place, choice.by_thresholds);
        return choice.place;
    };
    EXPECT_EQ(place(), AnswerPlace::handed);
    facts.prompt_tokens = 1024;
    EXPECT_EQ(place(), AnswerPlace::here);
    facts.prompt_tokens = 1025;
    EXPECT_EQ(place(), AnswerPlace::handed);
    facts.round_trip_s = 0.080;
    EXPECT_EQ(place(), AnswerPlace::here);
    facts.here.answer_tokens_per_s = 7.9;
    EXPECT_EQ(place(), AnswerPlace::hub);
    facts.words = WordsMayGo::nowhere;
    EXPECT_EQ(place(), AnswerPlace::here);
    facts.context_tokens = 0;
    EXPECT_EQ(place(), AnswerPlace::nowhere);
    facts.words = WordsMayGo::to_hub;
    EXPECT_EQ(place(), AnswerPlace::hub);
}

TEST(RouteTest, AProcessorAnswersOnceTheHubIsKnownToBeSlower) {
    RouteFacts facts = near_hub();
    facts.here_on_processor = true;
    facts.hub = {};
    facts.prompt_tokens = 100;
    facts.here = {400, 40};
    EXPECT_EQ(route(facts).place, AnswerPlace::hub) << "the hub's rates are not known";
    EXPECT_FALSE(route(facts).is_measured);
    facts.hub = {400, 10};
    EXPECT_EQ(route(facts).place, AnswerPlace::here);
    EXPECT_TRUE(route(facts).is_measured);
    facts.hub = {4000, 60};
    EXPECT_EQ(route(facts).place, AnswerPlace::hub);
    facts.hub = {};
    facts.hub_answers = false;
    EXPECT_EQ(route(facts).place, AnswerPlace::here) << "the hub is away";
}

TEST(RouteTest, AnUnknownConnectionIsTried) {
    RouteFacts facts = near_hub();
    facts.here.answer_tokens_per_s = 200;
    facts.answer_tokens = 400;
    facts.bytes_per_s = 0;
    const RouteChoice choice = route(facts);
    EXPECT_TRUE(choice.is_measured);
    EXPECT_EQ(choice.place, AnswerPlace::handed);
    EXPECT_FALSE(choice.as_u8);
}

TEST(RouteTest, ALowBatteryLeavesTheWorkToTheHub) {
    RouteFacts facts = near_hub();
    facts.held_tokens = facts.prompt_tokens;
    facts.here.answer_tokens_per_s = 200;
    EXPECT_EQ(route(facts).place, AnswerPlace::here);
    facts.battery_is_low = true;
    EXPECT_EQ(route(facts).place, AnswerPlace::hub);
    facts.words = WordsMayGo::nowhere;
    EXPECT_EQ(route(facts).place, AnswerPlace::here);
}

// The table of the wish for quality: hub_is_better, quality, can the hub answer, low battery.
TEST(RouteTest, QualityDecidesWhereTheHubIsBetter) {
    using enum AnswerPlace;
    struct Row {
        bool is_better;
        AnswerQuality quality;
        bool hub_answers, battery_is_low;
        AnswerPlace place;
    };
    constexpr Row rows[] = {
        {true, AnswerQuality::quickest, true, false, here},
        {true, AnswerQuality::best, true, false, hub},
        {true, AnswerQuality::draft_then_best, true, false, refined},
        {true, AnswerQuality::draft_then_best, true, true, hub},
        {true, AnswerQuality::best, false, false, here},
        {true, AnswerQuality::draft_then_best, false, false, here},
        {false, AnswerQuality::quickest, true, false, here},
        {false, AnswerQuality::best, true, false, here},
        {false, AnswerQuality::draft_then_best, true, false, here},
    };
    for (const Row& row : rows) {
        RouteFacts facts = near_hub();
        facts.here = {8000, 200};  // this device is the quicker one
        facts.hub_hands_off = false;
        facts.hub_is_better = row.is_better;
        facts.quality = row.quality;
        facts.hub_answers = row.hub_answers;
        facts.battery_is_low = row.battery_is_low;
        const std::string what = text("row ", &row - rows);
        EXPECT_EQ(route(facts).place, row.place) << what;
        facts.here = facts.hub = {};  // nothing is measured
        const RouteChoice choice = route(facts);
        EXPECT_FALSE(choice.is_measured) << what;
        if (row.place == refined || row.place == hub) EXPECT_EQ(choice.place, row.place) << what;
        facts.words = WordsMayGo::nowhere;
        EXPECT_EQ(route(facts).place, here) << what;
        facts.words = WordsMayGo::to_hub;
        facts.context_tokens = 0;
        EXPECT_EQ(route(facts).place, row.hub_answers ? hub : nowhere) << what;
    }
}

// 2,000 tokens are here, and the hub computes 4,000 tokens a second: 0.5 s. In f16 they have
// 16.4 MB, in u8 8.7 MB.
TEST(RouteTest, PagesAreSentWhereTheyArriveBeforeTheHubIsDone) {
    RouteFacts facts = near_hub();
    facts.held_tokens = facts.prompt_tokens;
    facts.here = {400, 4};
    facts.hub_takes_pages = true;
    const auto sent = [&](double up_bytes_per_s) {
        facts.up_bytes_per_s = up_bytes_per_s;
        return route(facts);
    };
    EXPECT_TRUE(sent(50e6).sends_pages);
    EXPECT_FALSE(sent(50e6).sends_as_u8);
    EXPECT_NEAR(seconds(sent(50e6), AnswerPlace::hub), 0.02 + 0.02 + 16.384e6 / 50e6 + 100 / 60.,
                0.001);
    EXPECT_TRUE(sent(20e6).sends_as_u8);
    EXPECT_FALSE(sent(10e6).sends_pages);
    EXPECT_NEAR(seconds(sent(10e6), AnswerPlace::hub), 0.02 + 0.5 + 100 / 60., 0.001);
    facts.hub_takes_pages = false;
    EXPECT_FALSE(sent(50e6).sends_pages);
    facts.hub_takes_pages = true;
    facts.held_tokens = 15;
    EXPECT_FALSE(sent(50e6).sends_pages);
    // The thresholds, where the hub's rate is not known.
    facts.held_tokens = 1040;
    facts.hub = {};
    EXPECT_TRUE(sent(0).sends_pages);
    facts.round_trip_s = 0.080;
    EXPECT_FALSE(sent(0).sends_pages);
    facts.round_trip_s = 0.020;
    facts.words = WordsMayGo::nowhere;
    EXPECT_FALSE(sent(0).sends_pages);
}

RouteFacts random_facts(std::mt19937& random) {
    const auto number = [&](double low, double high) {
        return std::exp(std::uniform_real_distribution(std::log(low), std::log(high))(random));
    };
    const auto chance = [&](double share) { return std::bernoulli_distribution(share)(random); };
    const auto rate = [&](double low, double high) { return chance(0.2) ? 0 : number(low, high); };
    RouteFacts facts;
    facts.prompt_tokens = static_cast<std::uint32_t>(number(1, 20000));
    facts.answer_tokens = static_cast<std::uint32_t>(number(1, 2000)) - 1;
    facts.held_tokens = chance(0.5) ? 0 : static_cast<std::uint32_t>(number(1, 20000));
    facts.context_tokens = chance(0.2) ? 0 : static_cast<std::uint32_t>(number(100, 20000));
    facts.hub_context_tokens = static_cast<std::uint32_t>(number(100, 40000));
    facts.words = chance(0.3) ? WordsMayGo::nowhere : WordsMayGo::to_hub;
    facts.hub_answers = chance(0.8);
    facts.hub_hands_off = chance(0.8);
    facts.battery_is_low = chance(0.1);
    facts.hub_takes_pages = chance(0.5);
    facts.up_bytes_per_s = rate(1e4, 1e9);
    facts.hub_is_better = chance(0.3);
    if (facts.hub_is_better) facts.hub_hands_off = facts.hub_takes_pages = false;
    facts.quality = static_cast<AnswerQuality>(random() % 3);
    facts.here = {rate(10, 10000), rate(1, 300)};
    facts.hub = {rate(10, 100000), rate(1, 300)};
    facts.bytes_per_s = rate(1e4, 1e9);
    facts.round_trip_s = rate(1e-4, 1);
    facts.f16_bytes_per_token = number(1e3, 2e5);
    facts.u8_bytes_per_token = facts.f16_bytes_per_token * 0.53;
    return facts;
}

bool wishes(const RouteFacts& facts) {
    return facts.hub_is_better && facts.quality != AnswerQuality::quickest;
}

TEST(RouteTest, NoWayIsChosenThatIsForbiddenOrCannotWork) {
    std::mt19937 random(41);
    std::array<int, num_answer_places> chosen{};
    for (int i = 0; i < 100000; ++i) {
        const RouteFacts facts = random_facts(random);
        const RouteChoice choice = route(facts);
        ++chosen[static_cast<std::size_t>(choice.place)];
        const bool here = facts.prompt_tokens < facts.context_tokens,
                   hub = facts.words == WordsMayGo::to_hub && facts.hub_answers &&
                         facts.prompt_tokens < facts.hub_context_tokens;
        switch (choice.place) {
            case AnswerPlace::nowhere: ASSERT_FALSE(here || hub) << i; break;
            case AnswerPlace::here: ASSERT_TRUE(here) << i; break;
            case AnswerPlace::hub: ASSERT_TRUE(hub) << i; break;
            case AnswerPlace::handed:
                ASSERT_TRUE(here && hub && facts.hub_hands_off) << i;
                ASSERT_GT(facts.prompt_tokens, facts.held_tokens) << i;
                break;
            case AnswerPlace::refined:
                ASSERT_TRUE(here && hub && facts.hub_is_better) << i;
                ASSERT_EQ(facts.quality, AnswerQuality::draft_then_best) << i;
                break;
        }
        if (facts.words == WordsMayGo::nowhere)
            ASSERT_TRUE(choice.place == AnswerPlace::here || choice.place == AnswerPlace::nowhere);
        if (choice.sends_pages)
            ASSERT_TRUE(hub && facts.hub_takes_pages && facts.held_tokens >= 16) << i;
        if (!choice.is_measured || facts.battery_is_low || wishes(facts)) continue;
        for (const double other : choice.seconds)
            ASSERT_LE(seconds(choice, choice.place), other) << i;
    }
    for (const int count : chosen) EXPECT_GT(count, 500) << "each place is chosen now and then";
}

// More of what makes a way fast never makes the choice leave it.
TEST(RouteTest, AFasterWayStaysChosen) {
    std::mt19937 random(42);
    for (int i = 0; i < 20000; ++i) {
        RouteFacts facts = random_facts(random);
        const RouteChoice choice = route(facts);
        if (!choice.is_measured || facts.battery_is_low || wishes(facts)) continue;
        // The rate of one direction says something of the other only where that is not measured.
        if (facts.up_bytes_per_s == 0) facts.up_bytes_per_s = facts.bytes_per_s;
        if (choice.place == AnswerPlace::here) facts.here.prompt_tokens_per_s *= 3;
        if (choice.place == AnswerPlace::hub) facts.hub.answer_tokens_per_s *= 3;
        if (choice.place == AnswerPlace::handed) facts.bytes_per_s *= 3;
        if (choice.place == AnswerPlace::here && facts.answer_tokens == 0) continue;
        ASSERT_EQ(route(facts).place, choice.place) << i;
    }
}

}  // namespace
}  // namespace moex
