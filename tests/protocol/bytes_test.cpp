#include "protocol/bytes.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "protocol/text.h"

namespace moex {
namespace {

TEST(BytesTest, IntegersAreLittleEndian) {
    ByteWriter out;
    out.u8(0x01);
    out.u16(0x0302);
    out.u32(0x07060504);
    out.u64(0x0f0e0d0c0b0a0908);
    const Bytes bytes = std::move(out).take();
    ASSERT_EQ(bytes.size(), 15u);
    for (std::size_t i = 0; i < bytes.size(); ++i)
        EXPECT_EQ(std::to_integer<std::size_t>(bytes[i]), i + 1);
}

TEST(BytesTest, IntegersComeBack) {
    EXPECT_TRUE(rc::check("integers",
                          [](std::uint8_t a, std::uint16_t b, std::uint32_t c, std::uint64_t d) {
                              ByteWriter out;
                              out.u8(a);
                              out.u16(b);
                              out.u32(c);
                              out.u64(d);
                              const Bytes bytes = std::move(out).take();
                              ByteReader in(bytes);
                              RC_ASSERT(in.u8() == a);
                              RC_ASSERT(in.u16() == b);
                              RC_ASSERT(in.u32() == c);
                              RC_ASSERT(in.u64() == d);
                              RC_ASSERT(!in.overrun() && in.remaining_bytes() == 0u);
                          }));
}

TEST(BytesTest, ReadingPastTheEndGivesZerosAndSetsOverrun) {
    const Bytes bytes(3, std::byte{0xff});
    ByteReader in(bytes);
    EXPECT_EQ(in.u32(), 0u);
    EXPECT_TRUE(in.overrun());
    EXPECT_EQ(in.u8(), 0u);
    EXPECT_EQ(in.remaining_bytes(), 0u);
    EXPECT_TRUE(in.take(1).empty());
}

TEST(BytesTest, GrowPadAndPatchKeepWhatWasWritten) {
    ByteWriter out(Bytes(100, std::byte{7}));
    out.u32(0);
    out.grow(3)[1] = std::byte{9};
    out.pad_to(8);
    out.patch_u32(0, 0xaabbccdd);
    const Bytes bytes = std::move(out).take();
    ASSERT_EQ(bytes.size(), 8u);
    ByteReader in(bytes);
    EXPECT_EQ(in.u32(), 0xaabbccddu);
    EXPECT_EQ(in.u32(), 0x00000900u);
}

TEST(TextTest, JoinsStringsNumbersAndBooleans) {
    EXPECT_EQ(text("a", std::string("b"), std::string_view("c"), 'd', 1, -2, 3u, std::uint8_t{65},
                   true, 0.5),
              "abcd1-2365true0.5");
}

}  // namespace
}  // namespace moex
