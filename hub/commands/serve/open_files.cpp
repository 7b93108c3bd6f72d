#include "hub/commands/serve/open_files.h"

#include <sys/resource.h>

#include <algorithm>

namespace moex {
namespace {

constexpr std::uint64_t own_files = 64;

}  // namespace

std::uint64_t raise_open_files() {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return UINT64_MAX;
    if (files.rlim_cur < files.rlim_max) {
        rlimit raised = files;
        raised.rlim_cur = files.rlim_max;
        if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) files = raised;
    }
    return files.rlim_cur == RLIM_INFINITY ? UINT64_MAX : std::uint64_t{files.rlim_cur};
}

std::uint64_t open_files_for(std::uint64_t connections) { return connections + own_files; }

std::uint32_t connections_within(std::uint32_t connections, std::uint64_t open_files) {
    constexpr std::uint64_t connections_min = 4;
    const std::uint64_t room = open_files > own_files ? open_files - own_files : 0;
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(connections, std::max(room, connections_min)));
}

}  // namespace moex
