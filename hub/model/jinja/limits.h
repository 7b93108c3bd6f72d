// TemplateLimits: the cost limits for rendering a template, and the time that the template sees.
#pragma once

#include <cstdint>
#include <optional>

namespace moex {

struct TemplateLimits {
    std::uint64_t steps_max = 2'000'000;  // evaluated nodes
    std::uint64_t output_bytes_max = 4u << 20;
    std::uint32_t depth_max = 100;  // limit for nested blocks, calls and macros
    // Unix time that strftime_now() returns, shown in UTC; if absent, the machine's current local
    // time
    std::optional<std::int64_t> now_unix_s;
};

}  // namespace moex
