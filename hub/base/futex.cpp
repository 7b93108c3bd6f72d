#include "hub/base/futex.h"

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#endif

namespace moex {

#ifdef __linux__

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                std::optional<TimePoint> deadline) {
    timespec until{};
    if (deadline) {
        const auto ns = deadline->time_since_epoch().count();
        until = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    }
    // The deadline of the wait is on CLOCK_MONOTONIC, the clock of steady_clock.
    ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, seen, deadline ? &until : nullptr,
              nullptr, FUTEX_BITSET_MATCH_ANY);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

#else  // a tab has one thread, which no other thread wakes

void futex_wait(const std::atomic<std::uint32_t>&, std::uint32_t, std::optional<TimePoint>) {}
void futex_wake_all(const std::atomic<std::uint32_t>&) {}

#endif

}  // namespace moex
