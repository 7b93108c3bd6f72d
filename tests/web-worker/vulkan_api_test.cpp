// Tests the choice of one Vulkan device among several.
#include "web-worker/gpu/vulkan/vulkan_api.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moex::gpu {
namespace {

const std::vector<std::string> names{"NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3",
                                     "NVIDIA GeForce RTX 4090", "llvmpipe (LLVM 15.0.6, 256 bits)"};

std::size_t found(const std::string& wanted) {
    const auto device = find_device(names, wanted);
    return device.ok() ? *device : names.size();
}

TEST(FindDeviceTest, ANumberIsAnIndexAlsoWhereItIsPartOfAName) {
    EXPECT_EQ(found("0"), 0u);
    EXPECT_EQ(found("1"), 1u);
    EXPECT_EQ(found("3"), 3u);
}

TEST(FindDeviceTest, OthersArePartsOfNames) {
    EXPECT_EQ(found("NVIDIA"), 0u);
    EXPECT_EQ(found("4090"), 2u);
    EXPECT_EQ(found("llvmpipe"), 3u);
}

TEST(FindDeviceTest, SaysWhichThereAre) {
    const auto no_such = find_device(std::vector<std::string>{"NVIDIA H100"}, "1");
    ASSERT_FALSE(no_such.ok());
    EXPECT_NE(no_such.error().message.find("number 1; there are: 0 NVIDIA H100"), std::string::npos)
        << no_such.error().message;
    EXPECT_FALSE(find_device(names, "Radeon").ok());
}

}  // namespace
}  // namespace moex::gpu
