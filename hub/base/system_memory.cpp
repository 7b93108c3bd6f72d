#include "hub/base/system_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "hub/base/control_groups.h"

namespace moex {
namespace {

std::optional<std::uint64_t> read_number(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::uint64_t value = 0;
    if (file >> value) return value;
    return std::nullopt;  // the file does not exist, or its text is "max" (no limit)
}

}  // namespace

std::uint64_t memory_available(const std::filesystem::path& root) {
    std::uint64_t available = std::numeric_limits<std::uint64_t>::max();
    std::ifstream meminfo(root / "proc/meminfo");
    for (std::string name, rest; meminfo >> name; std::getline(meminfo, rest))
        if (std::uint64_t kib = 0; name == "MemAvailable:" && meminfo >> kib) available = kib << 10;

    each_control_group(root, [&](const std::filesystem::path& group) {
        const auto most = read_number(group / "memory.max"),
                   used = read_number(group / "memory.current");
        if (most && used) available = std::min(available, *most - std::min(*most, *used));
    });

    return available == std::numeric_limits<std::uint64_t>::max() ? 0 : available;
}

}  // namespace moex
