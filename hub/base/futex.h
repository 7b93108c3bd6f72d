// Lets threads sleep until a word changes, without a lock. A woken thread acquires nothing, and one
// system call wakes many threads. Source: futex(2).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "hub/base/clock.h"

namespace moex {

// Sleeps while `word` is `seen`, until a wake-up or `deadline`. It may also return without a
// reason: the caller must read the word again.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                std::optional<TimePoint> deadline = {});
// Wakes all threads that sleep on `word`. Store the new value before this call.
void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace moex
