// How much memory this process may still take: of the machine, and of the control groups it runs in
// (containers, services).
#pragma once

#include <cstdint>
#include <filesystem>

namespace moex {

// Bytes; 0 when the system does not say. `root`: where proc/ and sys/ lie, for tests.
// Source: proc(5), MemAvailable; Linux kernel, Documentation/admin-guide/cgroup-v2, memory.max and
// memory.current.
std::uint64_t memory_available(const std::filesystem::path& root = "/");

}  // namespace moex
