// What this process takes, as the kernel counts it.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace moex {

// "VmRSS" (now) or "VmHWM" (at most so far), in bytes.
inline std::uint64_t process_bytes(std::string_view name) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with(name)) return std::stoull(line.substr(line.find(':') + 1)) * 1024;
    return 0;
}

}  // namespace moex
