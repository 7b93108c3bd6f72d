// Answers of workers with a false size in their LZ4 part are refused, and memory does not grow.
#include <fstream>

#include <gtest/gtest.h>

#include "protocol/messages.h"
#include "tests/support/process_memory.h"

namespace moex::net {
namespace {

constexpr WireLimits limits{.hidden_size = 7168,
                            .num_layers = 61,
                            .num_experts = 256,
                            .num_tokens_max = 2048,
                            .num_pairs_max = 2048};

// Makes a GROUP_RESULT with a header that announces 58 MB of f32 rows, followed by `block`.
Bytes bomb(const Bytes& block) {
    ByteWriter out(0);
    begin_frame(out, FrameType::group_result, 1);
    out.u16(3), out.u16(1), out.u32(2048), out.u16(7168),
        out.u8(static_cast<std::uint8_t>(Dtype::f32)), out.u8(flag_lz4), out.u32(2048);
    out.raw(block);
    return finish_frame(std::move(out));
}

TEST(Lz4BombTest, AShortBlockThatClaimsMuchCostsNoMemory) {
    const Bytes frame = bomb(Bytes(200));
    // reset the peak of memory use, which earlier tests of this process have raised
    std::ofstream("/proc/self/clear_refs") << 5;
    const std::uint64_t peak = process_bytes("VmHWM");
    const auto first = decode_group_result(frame, limits);
    ASSERT_FALSE(first.ok());
    EXPECT_EQ(first.error().code, ErrorCode::bad_compression) << first.error().message;
    for (int i = 0; i < 10'000; ++i) ASSERT_FALSE(decode_group_result(frame, limits).ok());
    EXPECT_LT(process_bytes("VmHWM"), peak + (16u << 20));
}

// The block is long enough to pass the first check of its size; the memory that it then takes is
// freed.
TEST(Lz4BombTest, ABlockThatBreaksOffLeavesNoMemoryBehind) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "SKIPPED: sanitizers keep what is given back";
#endif
    const std::uint64_t before = process_bytes("VmRSS");
    const Bytes frame = bomb(Bytes(2048 * 7168 * 4 / 255 + 1));
    for (int i = 0; i < 100; ++i)
        ASSERT_EQ(decode_group_result(frame, limits).error().code, ErrorCode::bad_compression);
    EXPECT_LT(process_bytes("VmRSS"), before + (16u << 20));
}

}  // namespace
}  // namespace moex::net
