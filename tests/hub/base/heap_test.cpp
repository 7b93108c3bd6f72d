#include "hub/base/heap.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/process_memory.h"

namespace moex {
namespace {

TEST(HeapTest, FreeMemoryBetweenObjectsIsReturned) {
    constexpr std::size_t piece_bytes = 64 << 10, num_pieces = 1024;
    const auto before = process_bytes("VmRSS");
    std::vector<std::unique_ptr<char[]>> kept;
    {
        std::vector<std::vector<char>> freed;
        for (std::size_t i = 0; i < num_pieces; ++i) {
            freed.emplace_back(piece_bytes, 'x');
            kept.push_back(std::make_unique<char[]>(64));
        }
        ASSERT_GT(process_bytes("VmRSS"), before + num_pieces * piece_bytes / 2);
    }
    return_free_memory();
    EXPECT_LT(process_bytes("VmRSS"), before + num_pieces * piece_bytes / 8);
}

}  // namespace
}  // namespace moex
