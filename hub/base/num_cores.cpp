#include "hub/base/num_cores.h"

#include <algorithm>
#include <thread>

#if defined(__linux__)
#include <sched.h>

#include <cstdint>
#include <fstream>

#include "hub/base/control_groups.h"
#endif

namespace moex {

#if defined(__linux__)

namespace {

// Returns the cores that the calling thread may run on; 0 if that is not known.
unsigned cores_allowed() {
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 0;
    return static_cast<unsigned>(CPU_COUNT(&cores));
}

// Returns the quota in a file like "150000 100000", in cores, rounded up; 0 if there is none: the
// file does not exist, or it begins with "max".
unsigned quota_of(const std::filesystem::path& cpu_max) {
    std::ifstream file(cpu_max);
    std::uint64_t quota_us = 0, period_us = 0;
    if (!(file >> quota_us >> period_us) || quota_us == 0 || period_us == 0) return 0;
    return static_cast<unsigned>((quota_us + period_us - 1) / period_us);
}

}  // namespace

unsigned num_cores(const std::filesystem::path& root) {
    unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    if (const unsigned allowed = cores_allowed(); allowed > 0) cores = std::min(cores, allowed);

    each_control_group(root, [&](const std::filesystem::path& group) {
        if (const unsigned quota = quota_of(group / "cpu.max"); quota > 0)
            cores = std::min(cores, quota);
    });
    return cores;
}

#else

unsigned num_cores(const std::filesystem::path&) {
    return std::max(1u, std::thread::hardware_concurrency());
}

#endif

}  // namespace moex
