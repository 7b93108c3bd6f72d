// The memory use of this process as the kernel counts it.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace moex {

// Returns a value of /proc/self/status in bytes: "VmRSS" is the memory used now, "VmHWM" the
// maximum so far.
inline std::uint64_t process_bytes(std::string_view name) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with(name)) return std::stoull(line.substr(line.find(':') + 1)) * 1024;
    return 0;
}

}  // namespace moex
