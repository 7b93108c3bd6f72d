// Tests of the history: minutes are combined into the points that the status page draws.
#include "hub/net/routes/history.h"

#include <gtest/gtest.h>

namespace moex::net {
namespace {

using nlohmann::json;

constexpr std::int64_t noon_s = 1'800'000'000 - 1'800'000'000 % 1800;

TEST(HistoryTest, TheNamesOfTheSpans) {
    for (const char* name : {"1h", "24h", "7d"}) EXPECT_TRUE(parse_history_span(name)) << name;
    for (const char* name : {"", "2h", "7d ", "1H"}) EXPECT_FALSE(parse_history_span(name)) << name;
}

TEST(HistoryTest, AnHourIsShownByMinutes) {
    const std::vector<HistoryMinute> minutes{{.minute_s = noon_s - 7200, .answer_tokens = 1},
                                             {.minute_s = noon_s - 60,
                                              .answer_tokens = 600,
                                              .answers = 4,
                                              .first_token_us = 2'000'000,
                                              .call_p50_us = 1500,
                                              .call_p99_us = 9000,
                                              .call_p999_us = 12000,
                                              .workers = 3,
                                              .covered = 100,
                                              .units = 128}};
    const json shown = history_json(minutes, *parse_history_span("1h"), noon_s);
    ASSERT_EQ(shown["points"].size(), 1u);
    EXPECT_EQ(shown["points"][0], json({{"time_s", noon_s - 60},
                                        {"tokens_per_s", 10.0},
                                        {"first_token_ms", 500.0},
                                        {"call_p50_ms", 1.5},
                                        {"call_p99_ms", 9.0},
                                        {"call_p999_ms", 12.0},
                                        {"workers", 3},
                                        {"covered", 100},
                                        {"units", 128}}));
}

// A point has the mean speed over the minutes in which the hub ran, the mean time to the first
// token over the answers, and the worst minute's value of all other fields.
TEST(HistoryTest, StepsJoinTheirMinutes) {
    const std::vector<HistoryMinute> minutes{{.minute_s = noon_s - 300,
                                              .answer_tokens = 60,
                                              .answers = 1,
                                              .first_token_us = 100'000,
                                              .call_p99_us = 5000,
                                              .call_p999_us = 40'000,
                                              .workers = 2,
                                              .covered = 128,
                                              .units = 128},
                                             {.minute_s = noon_s - 240,
                                              .answer_tokens = 180,
                                              .answers = 3,
                                              .first_token_us = 900'000,
                                              .call_p99_us = 9000,
                                              .workers = 5,
                                              .covered = 96,
                                              .units = 128},
                                             {.minute_s = noon_s - 60, .units = 128}};
    const json day = history_json(minutes, *parse_history_span("24h"), noon_s);
    ASSERT_EQ(day["points"].size(), 1u);
    const json& point = day["points"][0];
    EXPECT_EQ(point["tokens_per_s"], 240 / 180.0);
    EXPECT_EQ(point["first_token_ms"], 250.0);
    EXPECT_EQ(point["call_p99_ms"], 9.0);
    EXPECT_EQ(point["call_p999_ms"], 40.0);
    EXPECT_EQ(point["call_p50_ms"], nullptr);
    EXPECT_EQ(point["workers"], 5);
    EXPECT_EQ(point["covered"], 0);
}

TEST(HistoryTest, AWeekIsAFewHundredPoints) {
    std::vector<HistoryMinute> minutes;
    for (std::int64_t time_s = noon_s - 8 * 86'400; time_s < noon_s; time_s += 60)
        minutes.push_back({.minute_s = time_s, .answer_tokens = 60});
    const json week = history_json(minutes, *parse_history_span("7d"), noon_s);
    EXPECT_LE(week["points"].size(), 337u);
    EXPECT_GE(week["points"].size(), 335u);
    for (const json& point : week["points"]) EXPECT_EQ(point["tokens_per_s"], 1.0);
}

}  // namespace
}  // namespace moex::net
