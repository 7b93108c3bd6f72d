// The clock and the time types that all modules use. The sans-IO cores (protocol, SwarmCore, rate
// limits) receive `now` as an argument, so that a test can replay them. The code that runs a core,
// or that measures a duration, calls now_steady().
#pragma once

#include <chrono>

namespace moex {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;
using namespace std::chrono_literals;

inline TimePoint now_steady() {
    return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}
inline double to_ms(Duration duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace moex
