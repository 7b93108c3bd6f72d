// A program counts the cores that it may use: those that its thread may run on, and its control
// groups' quotas.
#include "hub/base/num_cores.h"

#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

namespace moex {
namespace {

class NumCoresTest : public testing::Test {
  protected:
    NumCoresTest()
        : root_(std::filesystem::temp_directory_path() /
                ("moex-cores-" + std::to_string(::getpid()))) {}
    ~NumCoresTest() override { std::filesystem::remove_all(root_); }
    void write(const std::string& path, const std::string& content) const {
        std::filesystem::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path) << content;
    }
    std::filesystem::path root_;
};

TEST_F(NumCoresTest, CoresThatTheThreadMayNotUseDoNotCount) {
    std::thread([&] {
        cpu_set_t all, one;
        ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
        EXPECT_EQ(num_cores(root_), static_cast<unsigned>(CPU_COUNT(&all)));

        CPU_ZERO(&one);
        for (std::size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i)
            if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
        ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
        EXPECT_EQ(num_cores(root_), 1u);
    }).join();
}

TEST_F(NumCoresTest, SmallestQuotaOfAllGroupsCounts) {
    const unsigned all = num_cores(root_);
    write("proc/self/cgroup", "1:cpu:/\n0::/service/hub\n");
    EXPECT_EQ(num_cores(root_), all) << "no file";
    write("sys/fs/cgroup/service/hub/cpu.max", "max 100000\n");
    write("sys/fs/cgroup/service/cpu.max", "6400000 100000\n");
    EXPECT_EQ(num_cores(root_), std::min(all, 64u));
    write("sys/fs/cgroup/service/cpu.max", "50000 100000\n");
    EXPECT_EQ(num_cores(root_), 1u) << "half a core";
    write("sys/fs/cgroup/service/cpu.max", "150000 100000\n");
    EXPECT_EQ(num_cores(root_), std::min(all, 2u)) << "rounded up";
    write("sys/fs/cgroup/service/hub/cpu.max", "nonsense");
    write("sys/fs/cgroup/cpu.max", "100000 100000\n");
    EXPECT_EQ(num_cores(root_), 1u) << "the root of a container";
}

}  // namespace
}  // namespace moex
