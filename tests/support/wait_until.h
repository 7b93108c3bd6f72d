// Waits for a state that a thread reaches by itself and has no event for. A wait has a limit, so
// that a test of a state that never comes fails, and does not hang.
#pragma once

#include <chrono>
#include <stdexcept>
#include <thread>

namespace moex::test {

// Throws, which fails the test, if the condition does not hold within a minute.
template <class Condition>
void wait_until(Condition condition) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
        if (std::chrono::steady_clock::now() > limit)
            throw std::runtime_error("the awaited state has not come within a minute");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

}  // namespace moex::test
