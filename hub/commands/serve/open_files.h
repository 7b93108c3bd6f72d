// The process's limit of open files (RLIMIT_NOFILE) and --connections-max: each connection needs
// a file descriptor.
#pragma once

#include <cstdint>

namespace moex {

// Raises the soft limit to the hard limit. The usual soft limit of 1,024 is meant for programs that
// use select(). Returns the limit in force; UINT64_MAX: none.
std::uint64_t raise_open_files();

// Returns the number of open files that a hub needs for `connections` connections: one each, and
// those of its files, its database and its pipes.
std::uint64_t open_files_for(std::uint64_t connections);

// Returns how many of `connections` fit into `open_files`, but at least four.
std::uint32_t connections_within(std::uint32_t connections, std::uint64_t open_files);

}  // namespace moex
