// The control groups of this process (version 2). In a container or a service they limit its memory
// and its cores.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace moex {

// Calls `visit(folder)` for the folder of the process's own group, and then of each group above it.
// Calls nothing where there are no groups of version 2. Reads /proc and /sys below `root`.
template <class Visit>
void each_control_group(const std::filesystem::path& root, const Visit& visit) {
    const std::filesystem::path groups = root / "sys/fs/cgroup";
    std::ifstream own(root / "proc/self/cgroup");
    for (std::string line; std::getline(own, line);) {
        if (!line.starts_with("0::/")) continue;  // version 2
        std::filesystem::path group = line.substr(4);
        for (;; group = group.parent_path()) {
            visit(groups / group);
            if (group.empty()) break;
        }
    }
}

}  // namespace moex
