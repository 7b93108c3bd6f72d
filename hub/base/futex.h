// Threads that sleep until a word changes, without a lock: who wakes takes nothing again, and many
// are woken by one call of the system. Source: futex(2).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "hub/base/clock.h"

namespace moex {

// Sleeps while `word` is `seen`, until a wake or `deadline`. May also return for nothing: who calls
// looks at the word again.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                std::optional<TimePoint> deadline = {});
// Wakes all who sleep on `word`; its new value was stored before.
void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace moex
