// The available memory is the smaller of the machine's and the control groups' limits.
#include "hub/base/system_memory.h"

#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace moex {
namespace {

class SystemMemoryTest : public testing::Test {
  protected:
    SystemMemoryTest()
        : root_(std::filesystem::temp_directory_path() /
                ("moex-memory-" + std::to_string(::getpid()))) {}
    ~SystemMemoryTest() override { std::filesystem::remove_all(root_); }
    void write(const std::string& path, const std::string& content) const {
        std::filesystem::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path) << content;
    }
    std::filesystem::path root_;
};

TEST_F(SystemMemoryTest, MachineMemoryIsAvailableWithoutGroups) {
    EXPECT_EQ(memory_available(root_), 0u);
    write("proc/meminfo",
          "MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    500 kB\nBuffers:     "
          "      1 kB\n");
    EXPECT_EQ(memory_available(root_), 500u << 10);
    EXPECT_GT(memory_available(), 0u);
}

TEST_F(SystemMemoryTest, NarrowestGroupLimitsAvailableMemory) {
    write("proc/meminfo", "MemAvailable:    500 kB\n");
    write("proc/self/cgroup", "0::/system.slice/moex.service\n");
    write("sys/fs/cgroup/system.slice/memory.max", "max\n");
    write("sys/fs/cgroup/system.slice/memory.current", "7\n");
    EXPECT_EQ(memory_available(root_), 500u << 10);
    write("sys/fs/cgroup/memory.max", "300000\n");
    write("sys/fs/cgroup/memory.current", "100000\n");

    EXPECT_EQ(memory_available(root_), 200000u);
    write("sys/fs/cgroup/system.slice/moex.service/memory.max", "90000\n");
    write("sys/fs/cgroup/system.slice/moex.service/memory.current", "40000\n");
    EXPECT_EQ(memory_available(root_), 50000u);
    write("sys/fs/cgroup/system.slice/moex.service/memory.current", "95000\n");
    EXPECT_EQ(memory_available(root_), 0u);
}

}  // namespace
}  // namespace moex
