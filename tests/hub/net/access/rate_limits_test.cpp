// Tests of the rate limits' token buckets, with a clock that the test sets.
#include "hub/net/access/rate_limits.h"

#include <gtest/gtest.h>

namespace moex::net {
namespace {

TEST(RateLimitsTest, ABurstThenTheRate) {
    RateLimits limits({.worker_connects_per_minute = 6, .worker_connects_burst = 3});
    TimePoint now{};
    for (int i = 0; i < 3; ++i)
        EXPECT_EQ(limits.worker_connect(now, "192.0.2.1", false), Duration{0});
    const Duration wait = limits.worker_connect(now, "192.0.2.1", false);
    EXPECT_GT(wait, 9s);
    EXPECT_LE(wait, 11s);
    EXPECT_EQ(limits.worker_connect(now, "192.0.2.2", false), Duration{0});
    EXPECT_EQ(limits.worker_connect(now + wait, "192.0.2.1", false), Duration{0});
}

TEST(RateLimitsTest, FailedHellosBanForAWhile) {
    RateLimits limits({.worker_connects_per_minute = 1000,
                       .worker_connects_burst = 1000,
                       .hello_failures_per_minute = 5});
    TimePoint now{};
    for (int i = 0; i < 5; ++i) limits.hello_failed(now, "192.0.2.1", false);
    EXPECT_EQ(limits.worker_connect(now, "192.0.2.1", false), Duration{0});
    limits.hello_failed(now, "192.0.2.1", false);
    EXPECT_EQ(limits.worker_connect(now, "192.0.2.1", false), Duration(10min));
    EXPECT_EQ(limits.worker_connect(now + 10min, "192.0.2.1", false), Duration{0});
}

// The limit on requests alone would allow ten megabytes of text a second.
TEST(RateLimitsTest, TextCostsItsBytes) {
    constexpr std::uint64_t megabyte = 1 << 20;
    RateLimits limits({.text_bytes_per_minute = 60.0 * megabyte,
                       .text_bytes_burst = 4.0 * megabyte,
                       .key_text_bytes_factor = 2});
    TimePoint now{};
    const auto ask = [&](const char* address, const char* key, std::uint64_t bytes) {
        return limits.text_bytes(now, address, key, false, bytes);
    };
    for (int i = 0; i < 4; ++i) EXPECT_EQ(ask("192.0.2.1", "", megabyte), Duration{0});
    const Duration wait = ask("192.0.2.1", "", megabyte);
    EXPECT_GT(wait, 900ms);
    EXPECT_LE(wait, 1100ms);
    EXPECT_GT(ask("192.0.2.1", "", 1000), Duration{0}) << "an empty bucket is empty";
    now += wait;
    EXPECT_EQ(ask("192.0.2.1", "", megabyte), Duration{0});

    // A key has one bucket for all addresses. A refused request takes no tokens from any bucket.
    for (const char* address : {"192.0.2.2", "192.0.2.3"})
        for (int i = 0; i < 4; ++i) EXPECT_EQ(ask(address, "key", megabyte), Duration{0});
    EXPECT_GT(ask("192.0.2.4", "key", megabyte), Duration{0});
    EXPECT_EQ(ask("192.0.2.4", "", 4 * megabyte), Duration{0});

    // A request for more tokens than the bucket can hold waits until the bucket is full.
    EXPECT_EQ(ask("192.0.2.5", "", 9 * megabyte), Duration{0});
    EXPECT_GT(ask("192.0.2.5", "", 1), Duration{0});
}

TEST(RateLimitsTest, LoopbackIsGenerousButBounded) {
    RateLimits limits(
        {.api_requests_per_minute = 1, .api_requests_burst = 1, .loopback_factor = 10});
    TimePoint now{};
    for (int i = 0; i < 10; ++i) EXPECT_EQ(limits.api_request(now, "127.0.0.1", true), Duration{0});
    EXPECT_GT(limits.api_request(now, "127.0.0.1", true), Duration{0});
}

TEST(RateLimitsTest, OnePersonHoldsAWholeIPv6Network) {
    EXPECT_EQ(rate_key("2001:db8:1:2:3:4:5:6"), rate_key("2001:db8:1:2:ffff::1"));
    EXPECT_NE(rate_key("2001:db8:1:2::1"), rate_key("2001:db8:1:3::1"));
    EXPECT_EQ(rate_key("::ffff:192.0.2.1"), "192.0.2.1");
    EXPECT_EQ(rate_key("192.0.2.1"), "192.0.2.1");
}

TEST(RateLimitsTest, TheTableIsBounded) {
    RateLimits limits(
        {.worker_connects_per_minute = 1, .worker_connects_burst = 1, .addresses_max = 2});
    TimePoint now{};
    for (const char* address : {"192.0.2.1", "192.0.2.2", "192.0.2.3"})
        EXPECT_EQ(limits.worker_connect(now, address, false), Duration{0});
    EXPECT_GT(limits.worker_connect(now, "192.0.2.3", false), Duration{0});
    // forgotten, starts anew
    EXPECT_EQ(limits.worker_connect(now, "192.0.2.1", false), Duration{0});
}

TEST(RateLimitsTest, AKeyHasABucketWhereverItIsUsed) {
    RateLimits rates({.key_requests_per_minute = 60, .key_requests_burst = 2});
    const TimePoint now{};
    EXPECT_EQ(rates.key_request(now, "a", false), Duration{0});
    EXPECT_EQ(rates.key_request(now, "a", false), Duration{0});
    EXPECT_GT(rates.key_request(now, "a", false), Duration{0});
    EXPECT_EQ(rates.key_request(now, "b", false), Duration{0});
    EXPECT_EQ(rates.key_request(now + std::chrono::seconds(2), "a", false), Duration{0});
}

}  // namespace
}  // namespace moex::net
