// TemplateLimits: the cost limits of a rendering, and the time that it sees.
#pragma once

#include <cstdint>
#include <optional>

namespace moex {

struct TemplateLimits {
    std::uint64_t steps_max = 2'000'000;  // evaluated nodes
    std::uint64_t output_bytes_max = 4u << 20;
    std::uint32_t depth_max = 100;  // nested blocks, calls and macros
    // time that strftime_now() returns, in UTC; the machine's local time if absent
    std::optional<std::int64_t> now_unix_s;
};

}  // namespace moex
