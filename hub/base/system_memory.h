// Measures how much memory this process may still take. The limits are those of the machine and of
// the control groups that contain the process (containers, services).
#pragma once

#include <cstdint>
#include <filesystem>

namespace moex {

// Returns the available memory in bytes; 0 when the system gives no value. `root` is the folder
// that contains proc/ and sys/, for tests.
// Source: proc(5), MemAvailable; Linux kernel, Documentation/admin-guide/cgroup-v2, memory.max and
// memory.current.
std::uint64_t memory_available(const std::filesystem::path& root = "/");

}  // namespace moex
