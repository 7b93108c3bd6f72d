// The number of processor cores that a program may use. std::thread::hardware_concurrency() counts
// the machine's, also in a container or a service that may use few of them. More threads than cores
// make each parallel loop wait for threads that have no core.
#pragma once

#include <filesystem>

namespace moex {

// Returns the least of: the machine's cores, those that the calling thread may run on
// (sched_setaffinity), and the quotas of the process's control group and the groups above it
// (cpu.max of version 2), rounded up. At least 1. Reads /proc and /sys below `root`, which tests
// set.
unsigned num_cores(const std::filesystem::path& root = "/");

}  // namespace moex
