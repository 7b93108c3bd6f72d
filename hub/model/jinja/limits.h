// What one rendering may cost, and what it may know of the time.
#pragma once

#include <cstdint>
#include <optional>

namespace moex {

struct TemplateLimits {
    std::uint64_t steps_max = 2'000'000;  // evaluated nodes
    std::uint64_t output_bytes_max = 4u << 20;
    std::uint32_t depth_max = 100;  // blocks, calls and macros inside each other
    // What strftime_now() says, in UTC; without it the machine's local time
    std::optional<std::int64_t> now_unix_s;
};

}  // namespace moex
