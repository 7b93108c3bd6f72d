#include "protocol/spin_wait.h"

#include <gtest/gtest.h>

#include <chrono>

namespace moex {
namespace {

using namespace std::chrono_literals;

// A test clock that advances by one microsecond for each poll.
struct LookClock {
    using duration = std::chrono::microseconds;
    using time_point = std::chrono::time_point<LookClock, duration>;
    static time_point now() { return time_point(duration(looked)); }
    static inline int looked = 0;
};

// Simulates a wait for an event that arrives at poll number `come_at`, or else during a sleep of
// `sleep`. Returns the number of polls.
int wait_for(SpinWait<LookClock>& spin, int come_at, std::chrono::microseconds sleep = 0us) {
    int looks = 0;
    const bool came = spin.look([&] {
        ++LookClock::looked;
        return ++looks == come_at;
    });
    if (!came) LookClock::looked += static_cast<int>(sleep.count());
    spin.came();
    return looks;
}

TEST(SpinWait, PollsOnceWithoutATimeToPoll) {
    SpinWait<LookClock> spin(0us);
    EXPECT_EQ(wait_for(spin, 100), 1);
    EXPECT_EQ(wait_for(spin, 1), 1);
    EXPECT_EQ(wait_for(spin, 100), 1);
    EXPECT_FALSE(spin.pays());
}

TEST(SpinWait, KeepsPollingWhileWaitsAreShort) {
    SpinWait<LookClock> spin(50us);
    EXPECT_EQ(wait_for(spin, 30), 1);  // the first wait polls once, as no wait was measured yet
    EXPECT_TRUE(spin.pays());
    EXPECT_EQ(wait_for(spin, 30), 30);
    EXPECT_EQ(wait_for(spin, 40), 40);
}

TEST(SpinWait, SleepsAtOnceAfterTwoLongWaitsUntilOneIsShort) {
    SpinWait<LookClock> spin(50us);
    wait_for(spin, 1);
    EXPECT_EQ(wait_for(spin, 1000, 200us), 50);  // all polls fail
    EXPECT_TRUE(spin.pays());
    EXPECT_EQ(wait_for(spin, 1000, 200us), 50);
    EXPECT_FALSE(spin.pays());
    EXPECT_EQ(wait_for(spin, 1000, 200us), 1);
    EXPECT_EQ(wait_for(spin, 1000, 20us), 1);
    EXPECT_TRUE(spin.pays());
    EXPECT_EQ(wait_for(spin, 30), 30);
}

// Regression: when short and long waits alternated, SpinWait slept in the short waits and polled
// without success in the long waits.
TEST(SpinWait, PollsInShortWaitsThatFollowLongOnes) {
    SpinWait<LookClock> spin(50us);
    wait_for(spin, 1000, 200us);
    wait_for(spin, 30);
    for (int i = 0; i < 10; ++i) {
        wait_for(spin, 1000, 200us);
        EXPECT_EQ(wait_for(spin, 30), 30) << i;
    }
}

}  // namespace
}  // namespace moex
